// SimpleRNN and GRU, forward, backward, and their Jacobians (scan/recurrent.h has the formulas).
//
//   RingarSimpleRnn          input, h0, recurrent, mask                  -> h
//   RingarGru                input, h0, recurrent, mask, bias            -> h, kept
//   Ringar…Gradient          h0, recurrent, mask, d_states, d_last, h, (kept)
//                                              -> d_input, d_h0, d_recurrent, d_bias
//   Ringar…Jacobians         h0, recurrent, mask, h, (kept)  -> (steps, batch, units, units)
//
// mask, bias, d_states and d_last may be absent; d_bias is that of a GRU's recurrent bias, and has
// no elements elsewhere. Options: activation, recurrent_activation, levels (of the way back; 0 is
// the serial kernel, -1 chosen), threads.

#include "scan/recurrent.h"

#include <algorithm>
#include <vector>

#include "kernels/computation.h"
#include "scan/choice.h"
#include "scan/recurrent_chain.h"
#include "scan/scan.h"
#include "scan/workers.h"

namespace ringar {
namespace {

Activation activation_of(const Options& options, const char* name) {
  return static_cast<Activation>(options.number(name));
}

int threads_of(const Options& options) {
  return static_cast<int>(std::max<int64_t>(options.number("threads"), 1));
}

// What differs from cell to cell; the arrays that forward writes come last.
template <typename T>
struct SimpleRnnTraits {
  using Cell = SimpleRnn<T>;
  using Kernels = SimpleRnnKernels<T>;
  static constexpr int64_t kGates = 1;
  static const Kernels& kernels() { return simple_rnn_kernels<T>(); }

  static Cell forward(const Options& options, const RecurrentShape& shape, const Inputs& in,
                      const Outputs& out) {
    return {shape,
            activation_of(options, "activation"),
            in.at<T>(0),
            in.at<T>(1),
            in.at<T>(2),
            in.at<uint8_t>(3),
            static_cast<T*>(out[0])};
  }
  // `written` is the index of h.
  static Cell backward(const Options& options, const RecurrentShape& shape, const Inputs& in,
                       size_t written) {
    return {shape,
            activation_of(options, "activation"),
            nullptr,
            in.at<T>(0),
            in.at<T>(1),
            in.at<uint8_t>(2),
            const_cast<T*>(in.at<T>(written))};
  }
};

template <typename T>
struct GruTraits {
  using Cell = Gru<T>;
  using Kernels = GruKernels<T>;
  static constexpr int64_t kGates = 3;
  static const Kernels& kernels() { return gru_kernels<T>(); }

  static Cell forward(const Options& options, const RecurrentShape& shape, const Inputs& in,
                      const Outputs& out) {
    return {shape,
            activation_of(options, "activation"),
            activation_of(options, "recurrent_activation"),
            in.at<T>(0),
            in.at<T>(1),
            in.at<T>(2),
            in.at<T>(4),
            in.at<uint8_t>(3),
            static_cast<T*>(out[0]),
            static_cast<T*>(out[1])};
  }
  static Cell backward(const Options& options, const RecurrentShape& shape, const Inputs& in,
                       size_t written) {
    return {shape,
            activation_of(options, "activation"),
            activation_of(options, "recurrent_activation"),
            nullptr,
            in.at<T>(0),
            in.at<T>(1),
            nullptr,
            in.at<uint8_t>(2),
            const_cast<T*>(in.at<T>(written)),
            const_cast<T*>(in.at<T>(written + 1))};
  }
};

RecurrentShape shape_of(const Dims& states) {
  return {states[0], states[1], states[2]};
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
std::vector<Dims> forward_shapes(const Options&, const std::vector<Dims>& inputs) {
  const int64_t batch = inputs[0][0], steps = inputs[0][1], units = inputs[1][1];
  if (kGates == 1) return {{batch, steps, units}};
  return {{batch, steps, units}, {batch, steps, 4 * units}};
}

template <template <typename> class Traits, typename T>
void forward(const Options& options, const Inputs& inputs, const Outputs& outputs) {
  const Dims& in = inputs.dims[0];
  const auto cell = Traits<T>::forward(options, {in[0], in[1], inputs.dims[1][1]}, inputs, outputs);
  for_examples(cell.shape, threads_of(options), [&](int64_t first, int64_t last, int64_t) {
    Traits<T>::kernels().forward(cell, first, last);
  });
}

// --- the way back ---

constexpr size_t kStates = 5;  // the index of h among the gradient's inputs

template <int64_t kGates>
std::vector<Dims> gradient_shapes(const Options&, const std::vector<Dims>& inputs) {
  const Dims& h = inputs[kStates];
  return {{h[0], h[1], kGates * h[2]},
          {h[0], h[2]},
          {h[2], kGates * h[2]},
          {kGates == 1 ? 0 : kGates * h[2]}};
}

// Weight gradients of each thread, added up in the order of the threads.
template <typename T>
class Sums {
 public:
  Sums(int threads, int64_t recurrent, int64_t bias)
      : recurrent_(recurrent),
        each_(recurrent + bias),
        parts_(static_cast<size_t>(threads * each_)) {}

  Backward<T> own(const Backward<T>& whole, int64_t task) {
    Backward<T> part = whole;
    part.d_recurrent = parts_.data() + task * each_;
    part.d_bias = whole.d_bias ? part.d_recurrent + recurrent_ : nullptr;
    return part;
  }
  void add_up(const Backward<T>& whole) const {
    std::fill_n(whole.d_recurrent, recurrent_, T(0));
    if (whole.d_bias) std::fill_n(whole.d_bias, each_ - recurrent_, T(0));
    for (size_t part = 0; part < parts_.size(); part += static_cast<size_t>(each_)) {
      for (int64_t i = 0; i < recurrent_; ++i)
        whole.d_recurrent[i] += parts_[part + static_cast<size_t>(i)];
      for (int64_t i = recurrent_; whole.d_bias && i < each_; ++i)
        whole.d_bias[i - recurrent_] += parts_[part + static_cast<size_t>(i)];
    }
  }

 private:
  const int64_t recurrent_, each_;
  std::vector<T> parts_;
};

// dL/dh of all steps, by the scan; the last of them is what comes from outside alone.
template <typename Cell, typename T>
std::vector<T> scan_states(const Cell& cell, const CellKernels<Cell, T>& kernels,
                           const Backward<T>& back, int levels, int threads) {
  const auto [batch, steps, units] = cell.shape;
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
void gradient(const Options& options, const Inputs& inputs, const Outputs& outputs) {
  const auto& kernels = Traits<T>::kernels();
  const auto cell = Traits<T>::backward(options, shape_of(inputs.dims[kStates]), inputs, kStates);
  const auto [batch, steps, units] = cell.shape;
  const bool has_bias = Traits<T>::kGates > 1;
  const int threads = threads_of(options);
  const Backward<T> back{inputs.at<T>(3),
                         inputs.at<T>(4),
                         static_cast<T*>(outputs[0]),
                         static_cast<T*>(outputs[1]),
                         static_cast<T*>(outputs[2]),
                         has_bias ? static_cast<T*>(outputs[3]) : nullptr};
  auto levels = static_cast<int>(std::min<int64_t>(options.number("levels"), 62));
  if (levels < 0)
    levels = choose_recurrent_levels({steps, batch, units}, Traits<T>::kGates, threads);
  if (steps == 0 || batch == 0) levels = 0;

  std::vector<T> d_h;
  if (levels > 0) d_h = scan_states(cell, kernels, back, levels, threads);
  const int64_t tasks = std::min<int64_t>(threads, batch);
  Sums<T> sums(static_cast<int>(tasks), Traits<T>::kGates * units * units,
               has_bias ? Traits<T>::kGates * units : 0);
  for_examples(cell.shape, threads, [&](int64_t first, int64_t last, int64_t task) {
    const Backward<T> own = sums.own(back, task);
    if (levels > 0)
      kernels.gradients(cell, own, d_h.data(), first, last);
    else
      kernels.backward(cell, own, first, last);
  });
  sums.add_up(back);
}

// --- Jacobians ---

std::vector<Dims> jacobians_shapes(const Options&, const std::vector<Dims>& inputs) {
  const Dims& h = inputs[3];
  return {{h[1], h[0], h[2], h[2]}};
}

template <template <typename> class Traits, typename T>
void jacobians(const Options& options, const Inputs& inputs, const Outputs& outputs) {
  const auto& kernels = Traits<T>::kernels();
  const auto cell = Traits<T>::backward(options, shape_of(inputs.dims[3]), inputs, 3);
  const auto [batch, steps, units] = cell.shape;
  if (batch * steps * units == 0) return;
  std::vector<T> prepared(static_cast<size_t>(jacobian_scratch(cell)));
  kernels.prepare_jacobians(cell, prepared.data());
  auto* to = static_cast<T*>(outputs[0]);
  const int64_t slab = batch * units * units, tasks = std::min<int64_t>(steps, 64);
  parallel_for(threads_of(options), tasks, [&](int64_t i) {
    for (int64_t t = i * steps / tasks; t < (i + 1) * steps / tasks; ++t)
      kernels.jacobians(cell, prepared.data(), t, 0, batch, to + t * slab);
  });
}

}  // namespace

const Computation& simple_rnn_computation() {
  static const Computation computation{"RingarSimpleRnn", "ringar_simple_rnn", forward_shapes<1>,
                                       forward<SimpleRnnTraits, float>,
                                       forward<SimpleRnnTraits, double>};
  return computation;
}

const Computation& simple_rnn_gradient_computation() {
  static const Computation computation{"RingarSimpleRnnGradient", "ringar_simple_rnn_gradient",
                                       gradient_shapes<1>, gradient<SimpleRnnTraits, float>,
                                       gradient<SimpleRnnTraits, double>};
  return computation;
}

const Computation& simple_rnn_jacobians_computation() {
  static const Computation computation{"RingarSimpleRnnJacobians", "ringar_simple_rnn_jacobians",
                                       jacobians_shapes, jacobians<SimpleRnnTraits, float>,
                                       jacobians<SimpleRnnTraits, double>};
  return computation;
}

const Computation& gru_computation() {
  static const Computation computation{"RingarGru", "ringar_gru", forward_shapes<3>,
                                       forward<GruTraits, float>, forward<GruTraits, double>};
  return computation;
}

const Computation& gru_gradient_computation() {
  static const Computation computation{"RingarGruGradient", "ringar_gru_gradient",
                                       gradient_shapes<3>, gradient<GruTraits, float>,
                                       gradient<GruTraits, double>};
  return computation;
}

const Computation& gru_jacobians_computation() {
  static const Computation computation{"RingarGruJacobians", "ringar_gru_jacobians",
                                       jacobians_shapes, jacobians<GruTraits, float>,
                                       jacobians<GruTraits, double>};
  return computation;
}

}  // namespace ringar
