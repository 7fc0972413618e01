// SimpleRNN, GRU and LSTM, forward, backward, and the Jacobians of the first two (scan/recurrent.h
// has the formulas).
//
//   all take first          h0, recurrent, mask, then
//   Ringar…                 inputs, kernel, bias, recurrent_bias        -> h, (kept)
//   Ringar…Gradient         inputs, kernel, bias, d_states, d_last, h, (kept)
//                 -> d_inputs, d_h0, d_kernel, d_recurrent, d_bias, d_recurrent_bias
//   Ringar…Jacobians        h, (kept)                       -> (steps, batch, units, units)
//
// h0, d_last and d_h0 have both vectors of an LSTM's state, h and c. `kept` is a GRU's and an
// LSTM's, recurrent_bias a GRU's. mask, both biases, d_states and d_last may be absent. Options:
// activation, recurrent_activation, levels (of the way back; 0 is the serial kernel, -1 chosen),
// threads.

#include "scan/recurrent.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/recurrent_cells.h"
#include "kernels/recurrent_inputs.h"
#include "scan/choice.h"
#include "scan/recurrent_chain.h"
#include "scan/scan.h"
#include "scan/workers.h"

namespace ringar {
namespace {

// What forward has written is an input of the others, which only read it.
template <typename T>
std::vector<T*> written_at(const Inputs& in, size_t index) {
  std::vector<T*> written;
  for (; index < in.data.size(); ++index) written.push_back(const_cast<T*>(in.at<T>(index)));
  return written;
}

RecurrentShape shape_of(const Inputs& in) {
  const Dims& inputs = in.dims[kInputs];
  return {inputs[0], inputs[1], inputs[2], in.dims[kRecurrent][0]};
}

// Calls work(first, last, index of the task) for stretches of the batch.
template <typename Work>
void for_examples(const RecurrentShape& shape, int threads, const Work& work) {
  const int64_t tasks = std::min<int64_t>(threads, shape.batch);
  parallel_for(threads, tasks,
               [&](int64_t i) { work(i * shape.batch / tasks, (i + 1) * shape.batch / tasks, i); });
}

// --- forward ---

template <const CellArrays& kCell>
std::vector<Dims> forward_shapes(const Options&, const std::vector<Dims>& in) {
  const int64_t batch = in[kInputs][0], steps = in[kInputs][1], units = in[kRecurrent][0];
  if (kCell.kept == 0) return {{batch, steps, units}};
  return {{batch, steps, units}, {batch, steps, kCell.kept * units}};
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
  const int threads = threads_for(options, cell.shape, Traits<T>::kArrays.gates, 0);
  for_examples(cell.shape, threads, [&](int64_t first, int64_t last, int64_t) {
    Traits<T>::kernels().forward(cell, first, last);
  });
}

// --- the way back ---

template <const CellArrays& kCell>
std::vector<Dims> gradient_shapes(const Options&, const std::vector<Dims>& in) {
  const Dims& bias = in[kBias];
  return {in[kInputs],    in[kInitial], in[kKernel],
          in[kRecurrent], bias,         kCell.recurrent_bias ? bias : Dims{0}};
}

// Weight gradients of each thread, added up in the order of the threads. A single thread writes
// them where they belong.
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
std::vector<T> scan_states(const Cell& cell, const ScannedKernels<Cell, T>& kernels,
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

// Of the scan; 0 is the serial kernel.
int levels_for(const Options& options, const RecurrentShape& shape, int gates) {
  if (shape.steps == 0 || shape.batch == 0) return 0;
  const int64_t levels = options.number("levels");
  if (levels >= 0) return static_cast<int>(std::min<int64_t>(levels, 62));
  const ChainSize chain{shape.steps, shape.batch, shape.units};
  return choose_recurrent_levels(chain, gates, options.threads());
}

template <template <typename> class Traits, typename T>
void gradient(const Options& options, const Inputs& in, const Outputs& outputs) {
  constexpr CellArrays kArrays = Traits<T>::kArrays;
  constexpr int kGates = static_cast<int>(kArrays.gates);
  const auto& kernels = Traits<T>::kernels();
  const auto cell = Traits<T>::cell(options, shape_of(in), in, projection<T>(in), nullptr,
                                    written_at<T>(in, kDLast + 1));
  const RecurrentShape& shape = cell.shape;
  const auto output = [&](size_t index) { return static_cast<T*>(outputs[index]); };
  const bool has_bias = in.at<T>(kBias) != nullptr;
  const Backward<T> back{
      in.at<T>(kDStates), in.at<T>(kDLast),
      output(0),          output(1),
      output(2),          has_bias ? output(4) : nullptr,
      output(3),          has_bias && kArrays.recurrent_bias ? output(5) : nullptr};
  const int levels = kArrays.scanned ? levels_for(options, shape, kGates) : 0;
  const int threads = threads_for(options, shape, kGates, levels);

  std::vector<T> d_h;
  if constexpr (kArrays.scanned)
    if (levels > 0) d_h = scan_states(cell, kernels, back, levels, threads);
  Sums<T> sums(back, shape, kGates, std::min<int64_t>(threads, shape.batch));
  for_examples(shape, threads, [&](int64_t first, int64_t last, int64_t task) {
    const Backward<T> own = sums.own(task);
    if constexpr (kArrays.scanned)
      if (levels > 0) return kernels.gradients(cell, own, d_h.data(), first, last);
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
                                       check_forward<kSimpleRnn>,
                                       forward_shapes<kSimpleRnn>,
                                       forward<SimpleRnnTraits, float>,
                                       forward<SimpleRnnTraits, double>};
  return computation;
}

const Computation& simple_rnn_gradient_computation() {
  static const Computation computation{
      "RingarSimpleRnnGradient",        "ringar_simple_rnn_gradient",
      check_gradient<kSimpleRnn>,       gradient_shapes<kSimpleRnn>,
      gradient<SimpleRnnTraits, float>, gradient<SimpleRnnTraits, double>};
  return computation;
}

const Computation& simple_rnn_jacobians_computation() {
  static const Computation computation{
      "RingarSimpleRnnJacobians",        "ringar_simple_rnn_jacobians",
      check_jacobians<kSimpleRnn>,       jacobians_shapes,
      jacobians<SimpleRnnTraits, float>, jacobians<SimpleRnnTraits, double>};
  return computation;
}

const Computation& gru_computation() {
  static const Computation computation{"RingarGru",
                                       "ringar_gru",
                                       check_forward<kGru>,
                                       forward_shapes<kGru>,
                                       forward<GruTraits, float>,
                                       forward<GruTraits, double>};
  return computation;
}

const Computation& gru_gradient_computation() {
  static const Computation computation{"RingarGruGradient",        "ringar_gru_gradient",
                                       check_gradient<kGru>,       gradient_shapes<kGru>,
                                       gradient<GruTraits, float>, gradient<GruTraits, double>};
  return computation;
}

const Computation& gru_jacobians_computation() {
  static const Computation computation{"RingarGruJacobians",        "ringar_gru_jacobians",
                                       check_jacobians<kGru>,       jacobians_shapes,
                                       jacobians<GruTraits, float>, jacobians<GruTraits, double>};
  return computation;
}

const Computation& lstm_computation() {
  static const Computation computation{"RingarLstm",
                                       "ringar_lstm",
                                       check_forward<kLstm>,
                                       forward_shapes<kLstm>,
                                       forward<LstmTraits, float>,
                                       forward<LstmTraits, double>};
  return computation;
}

const Computation& lstm_gradient_computation() {
  static const Computation computation{"RingarLstmGradient",        "ringar_lstm_gradient",
                                       check_gradient<kLstm>,       gradient_shapes<kLstm>,
                                       gradient<LstmTraits, float>, gradient<LstmTraits, double>};
  return computation;
}

}  // namespace ringar
