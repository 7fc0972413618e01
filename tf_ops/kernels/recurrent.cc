// SimpleRNN and GRU, forward, backward, and their Jacobians (scan/recurrent.h has the formulas).
//
//   all take first          h0, recurrent, mask, then
//   Ringar…                 inputs, kernel, bias, recurrent_bias        -> h, (kept)
//   Ringar…Gradient         inputs, kernel, bias, d_states, d_last, h, (kept)
//                 -> d_inputs, d_h0, d_kernel, d_recurrent, d_bias, d_recurrent_bias
//   Ringar…Jacobians        h, (kept)                       -> (steps, batch, units, units)
//
// `kept` is a GRU's. mask, both biases, d_states and d_last may be absent. Options: activation,
// recurrent_activation, levels (of the way back; 0 is the serial kernel, -1 chosen), threads.

#include "scan/recurrent.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/recurrent_inputs.h"
#include "scan/choice.h"
#include "scan/recurrent_chain.h"
#include "scan/scan.h"
#include "scan/workers.h"

namespace ringar {
namespace {

Activation activation_of(const Options& options, const char* name) {
  return static_cast<Activation>(options.number(name));
}

template <typename T>
Projection<T> projection(const Inputs& in) {
  return {in.at<T>(kInputs), in.at<T>(kKernel), in.at<T>(kBias)};
}

// What differs from cell to cell. `written` is h and, for a GRU, what is kept; the way back needs
// no recurrent bias, nor do Jacobians a projection.
template <typename T>
struct SimpleRnnTraits {
  using Cell = SimpleRnn<T>;
  static constexpr int64_t kGates = 1;
  static const SimpleRnnKernels<T>& kernels() { return simple_rnn_kernels<T>(); }

  static Cell cell(const Options& options, const RecurrentShape& shape, const Inputs& in,
                   const Projection<T>& projection, const T*, const std::vector<T*>& written) {
    return {shape,
            activation_of(options, "activation"),
            projection,
            in.at<T>(kInitial),
            in.at<T>(kRecurrent),
            in.at<uint8_t>(kMask),
            written[0]};
  }
};

template <typename T>
struct GruTraits {
  using Cell = Gru<T>;
  static constexpr int64_t kGates = 3;
  static const GruKernels<T>& kernels() { return gru_kernels<T>(); }

  static Cell cell(const Options& options, const RecurrentShape& shape, const Inputs& in,
                   const Projection<T>& projection, const T* recurrent_bias,
                   const std::vector<T*>& written) {
    return {shape,
            activation_of(options, "activation"),
            activation_of(options, "recurrent_activation"),
            projection,
            in.at<T>(kInitial),
            in.at<T>(kRecurrent),
            recurrent_bias,
            in.at<uint8_t>(kMask),
            written[0],
            written[1]};
  }
};

// What forward has written is an input of the others, which only read it.
template <typename T>
std::vector<T*> written_at(const Inputs& in, size_t index) {
  std::vector<T*> written;
  for (; index < in.data.size(); ++index) written.push_back(const_cast<T*>(in.at<T>(index)));
  return written;
}

RecurrentShape shape_of(const Inputs& in) {
  const Dims &inputs = in.dims[kInputs], &initial = in.dims[kInitial];
  return {inputs[0], inputs[1], inputs[2], initial[1]};
}

// Calls work(first, last, index of the task) for stretches of the batch.
template <typename Work>
void for_examples(const RecurrentShape& shape, int threads, const Work& work) {
  const int64_t tasks = std::min<int64_t>(threads, shape.batch);
  parallel_for(threads, tasks,
               [&](int64_t i) { work(i * shape.batch / tasks, (i + 1) * shape.batch / tasks, i); });
}

// --- forward ---

template <int64_t kGates>
std::vector<Dims> forward_shapes(const Options&, const std::vector<Dims>& in) {
  const int64_t batch = in[kInputs][0], steps = in[kInputs][1], units = in[kInitial][1];
  if (kGates == 1) return {{batch, steps, units}};
  return {{batch, steps, units}, {batch, steps, 4 * units}};
}

// As many of the threads as are worth waking.
int threads_for(const Options& options, const RecurrentShape& shape, int gates, int levels) {
  const ChainSize chain{shape.steps, shape.batch, shape.units};
  return worthwhile_threads(recurrent_seconds(chain, gates, levels, 1), options.threads());
}

template <template <typename> class Traits, typename T>
void forward(const Options& options, const Inputs& in, const Outputs& outputs) {
  std::vector<T*> written;
  for (void* output : outputs) written.push_back(static_cast<T*>(output));
  const auto cell = Traits<T>::cell(options, shape_of(in), in, projection<T>(in),
                                    in.at<T>(kRecurrentBias), written);
  const int threads = threads_for(options, cell.shape, Traits<T>::kGates, 0);
  for_examples(cell.shape, threads, [&](int64_t first, int64_t last, int64_t) {
    Traits<T>::kernels().forward(cell, first, last);
  });
}

// --- the way back ---

template <int64_t kGates>
std::vector<Dims> gradient_shapes(const Options&, const std::vector<Dims>& in) {
  const Dims& bias = in[kBias];
  return {in[kInputs],    in[kInitial], in[kKernel],
          in[kRecurrent], bias,         kGates == 1 ? Dims{0} : bias};
}

// Weight gradients of each thread, added up in the order of the threads. A single thread writes them
// where they belong.
template <typename T>
class Sums {
 public:
  Sums(const Backward<T>& whole, const RecurrentShape& shape, int64_t gates, int64_t threads)
      : whole_(whole), parts_(static_cast<size_t>(threads)) {
    const int64_t columns = gates * shape.units;
    arrays_ = {{&Backward<T>::d_kernel, shape.features * columns},
               {&Backward<T>::d_recurrent, shape.units * columns},
               {&Backward<T>::d_bias, columns},
               {&Backward<T>::d_recurrent_bias, columns}};
  }

  Backward<T> own(int64_t task) {
    if (parts_.size() == 1) return whole_;
    std::vector<T>& memory = parts_[static_cast<size_t>(task)];
    memory.resize(static_cast<size_t>(elements()));
    Backward<T> part = whole_;
    T* next = memory.data();
    for (const auto& [array, size] : arrays_) {
      if (whole_.*array) part.*array = next;
      next += size;
    }
    return part;
  }

  void add_up() const {
    if (parts_.size() == 1) return;
    size_t offset = 0;
    for (const auto& [array, size] : arrays_) {
      T* sum = whole_.*array;
      if (sum) std::fill_n(sum, size, T(0));
      for (const std::vector<T>& part : parts_)
        for (size_t i = 0; sum && i < static_cast<size_t>(size); ++i) sum[i] += part[offset + i];
      offset += static_cast<size_t>(size);
    }
  }

 private:
  int64_t elements() const {
    int64_t all = 0;
    for (const auto& array : arrays_) all += array.second;
    return all;
  }

  const Backward<T> whole_;
  std::vector<std::pair<T * Backward<T>::*, int64_t>> arrays_;
  std::vector<std::vector<T>> parts_;
};

// dL/dh of all steps, by the scan; the last of them is what comes from outside alone.
template <typename Cell, typename T>
std::vector<T> scan_states(const Cell& cell, const CellKernels<Cell, T>& kernels,
                           const Backward<T>& back, int levels, int threads) {
  const auto [batch, steps, features, units] = cell.shape;
  std::vector<T> d_h(static_cast<size_t>(batch * steps * units));
  const RecurrentChain<Cell, T> chain(cell, kernels, back.d_states, d_h.data(), back.d_h0);
  const Rows<T> last = chain.results(0);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < units; ++i) {
      T& sum = last.data[b * last.stride + i];
      if (back.d_last) sum += back.d_last[b * units + i];
      if (back.d_states) sum += back.d_states[(b * steps + steps - 1) * units + i];
    }
  scan(chain, levels, threads);
  return d_h;
}

template <template <typename> class Traits, typename T>
void gradient(const Options& options, const Inputs& in, const Outputs& outputs) {
  constexpr int64_t kGates = Traits<T>::kGates;
  const auto& kernels = Traits<T>::kernels();
  const auto cell = Traits<T>::cell(options, shape_of(in), in, projection<T>(in), nullptr,
                                    written_at<T>(in, kDLast + 1));
  const RecurrentShape& shape = cell.shape;
  const auto output = [&](size_t index) { return static_cast<T*>(outputs[index]); };
  const bool has_bias = in.at<T>(kBias) != nullptr;
  const Backward<T> back{in.at<T>(kDStates), in.at<T>(kDLast),
                         output(0),          output(1),
                         output(2),          has_bias ? output(4) : nullptr,
                         output(3),          has_bias && kGates > 1 ? output(5) : nullptr};
  auto levels = static_cast<int>(std::min<int64_t>(options.number("levels"), 62));
  if (levels < 0)
    levels =
        choose_recurrent_levels({shape.steps, shape.batch, shape.units}, kGates, options.threads());
  if (shape.steps == 0 || shape.batch == 0) levels = 0;
  const int threads = threads_for(options, shape, kGates, levels);

  std::vector<T> d_h;
  if (levels > 0) d_h = scan_states(cell, kernels, back, levels, threads);
  Sums<T> sums(back, shape, kGates, std::min<int64_t>(threads, shape.batch));
  for_examples(shape, threads, [&](int64_t first, int64_t last, int64_t task) {
    const Backward<T> own = sums.own(task);
    if (levels > 0)
      kernels.gradients(cell, own, d_h.data(), first, last);
    else
      kernels.backward(cell, own, first, last);
  });
  sums.add_up();
}

// --- Jacobians ---

std::vector<Dims> jacobians_shapes(const Options&, const std::vector<Dims>& inputs) {
  const Dims& h = inputs[kStates];
  return {{h[1], h[0], h[2], h[2]}};
}

template <template <typename> class Traits, typename T>
void jacobians(const Options& options, const Inputs& in, const Outputs& outputs) {
  const auto& kernels = Traits<T>::kernels();
  const Dims& h = in.dims[kStates];
  const RecurrentShape shape{h[0], h[1], 0, h[2]};
  if (shape.batch * shape.steps * shape.units == 0) return;
  const auto cell = Traits<T>::cell(options, shape, in, {}, nullptr, written_at<T>(in, kStates));
  std::vector<T> prepared(static_cast<size_t>(jacobian_scratch(cell)));
  kernels.prepare_jacobians(cell, prepared.data());
  auto* to = static_cast<T*>(outputs[0]);
  const int64_t slab = shape.batch * shape.units * shape.units;
  const int64_t tasks = std::min<int64_t>(shape.steps, 64);
  parallel_for(options.threads(), tasks, [&](int64_t i) {
    for (int64_t t = i * shape.steps / tasks; t < (i + 1) * shape.steps / tasks; ++t)
      kernels.jacobians(cell, prepared.data(), t, 0, shape.batch, to + t * slab);
  });
}

}  // namespace

const Computation& simple_rnn_computation() {
  static const Computation computation{"RingarSimpleRnn",
                                       "ringar_simple_rnn",
                                       check_forward<1>,
                                       forward_shapes<1>,
                                       forward<SimpleRnnTraits, float>,
                                       forward<SimpleRnnTraits, double>};
  return computation;
}

const Computation& simple_rnn_gradient_computation() {
  static const Computation computation{"RingarSimpleRnnGradient",
                                       "ringar_simple_rnn_gradient",
                                       check_gradient<1>,
                                       gradient_shapes<1>,
                                       gradient<SimpleRnnTraits, float>,
                                       gradient<SimpleRnnTraits, double>};
  return computation;
}

const Computation& simple_rnn_jacobians_computation() {
  static const Computation computation{"RingarSimpleRnnJacobians",
                                       "ringar_simple_rnn_jacobians",
                                       check_jacobians<1>,
                                       jacobians_shapes,
                                       jacobians<SimpleRnnTraits, float>,
                                       jacobians<SimpleRnnTraits, double>};
  return computation;
}

const Computation& gru_computation() {
  static const Computation computation{"RingarGru",
                                       "ringar_gru",
                                       check_forward<3>,
                                       forward_shapes<3>,
                                       forward<GruTraits, float>,
                                       forward<GruTraits, double>};
  return computation;
}

const Computation& gru_gradient_computation() {
  static const Computation computation{"RingarGruGradient",        "ringar_gru_gradient",
                                       check_gradient<3>,          gradient_shapes<3>,
                                       gradient<GruTraits, float>, gradient<GruTraits, double>};
  return computation;
}

const Computation& gru_jacobians_computation() {
  static const Computation computation{"RingarGruJacobians",        "ringar_gru_jacobians",
                                       check_jacobians<3>,          jacobians_shapes,
                                       jacobians<GruTraits, float>, jacobians<GruTraits, double>};
  return computation;
}

}  // namespace ringar
