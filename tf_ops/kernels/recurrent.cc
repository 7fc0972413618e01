// SimpleRNN, GRU and LSTM, forward, backward, and the Jacobians of the first two (scan/recurrent.h
// has the formulas).
//
//   all take first          h0, recurrent, mask, then
//   Ringar…                 inputs, kernel, bias, recurrent_bias, packed        -> h, (kept)
//   Ringar…Gradient         inputs, kernel, bias, d_states, d_last, h, (kept)
//                 -> d_inputs, d_h0, d_kernel, d_recurrent, d_bias, d_recurrent_bias
//   Ringar…Jacobians        h, (kept)                       -> (steps, batch, units, units)
//
// h0, d_last and d_h0 have both vectors of an LSTM's state, h and c. `residuals` is a GRU's and an
// LSTM's, recurrent_bias a GRU's. mask, both biases, d_states, d_last and packed
// (recurrent_chunks.cc makes it) may be absent. Options: activation, recurrent_activation, levels
// (of the way back; 0 is the serial kernel, -1 chosen), threads, without_inputs (d_inputs is
// empty).

#include <algorithm>
#include <vector>

#include "kernels/recurrent_cells.h"
#include "kernels/recurrent_inputs.h"
#include "kernels/recurrent_run.h"
#include "scan/workers.h"

namespace ringar {
namespace {

// --- forward ---

template <const CellArrays& kCell>
std::vector<Dims> forward_shapes(const Options&, const std::vector<Dims>& in) {
  const int64_t batch = in[kInputs][0], steps = in[kInputs][1], units = in[kRecurrent][0];
  if (kCell.residuals == 0) return {{batch, steps, units}};
  return {{batch, steps, units}, {batch, steps, kCell.residuals * units}};
}

template <template <typename> class Traits, typename T>
void forward(const Options& options, const Inputs& in, const Outputs& outputs) {
  std::vector<T*> arrays;
  for (void* output : outputs) arrays.push_back(static_cast<T*>(output));
  const auto& kernels = Traits<T>::kernels();
  const auto cell = Traits<T>::cell(options, shape_of(in), in, projection<T>(in),
                                    in.at<T>(kRecurrentBias), arrays);
  const PackedSizes sizes = kernels.sizes(cell.shape);
  const T* packed = in.at<T>(kPacked);
  RINGAR_CHECK(!packed || in.dims[kPacked] == Dims{sizes.forth});
  const Memory<T> memory(packed ? 0 : sizes.forth);
  if (!packed) {
    kernels.pack(cell.shape, in.at<T>(kKernel), in.at<T>(kRecurrent), memory.data());
    packed = memory.data();
  }
  const int threads = threads_for(options, cell.shape, Traits<T>::kArrays.gates, 0);
  for_examples(cell.shape, threads, [&](int64_t first, int64_t last, int64_t) {
    kernels.forward(cell, packed, first, last);
  });
}

// --- the way back ---

template <const CellArrays& kCell>
std::vector<Dims> gradient_shapes(const Options& options, const std::vector<Dims>& in) {
  const Dims& bias = in[kBias];
  return {d_inputs_dims(options, in),           in[kInitial], in[kKernel], in[kRecurrent], bias,
          kCell.recurrent_bias ? bias : Dims{0}};
}

template <template <typename> class Traits, typename T>
void gradient(const Options& options, const Inputs& in, const Outputs& outputs) {
  constexpr CellArrays kArrays = Traits<T>::kArrays;
  const auto& kernels = Traits<T>::kernels();
  const auto cell = Traits<T>::cell(options, shape_of(in), in, projection<T>(in), nullptr,
                                    written_at<T>(in, kDLast + 1));
  const PackedSizes sizes = kernels.sizes(cell.shape);
  const int64_t rows = rows_of_sums(options, cell.shape);
  const Memory<T> packed(sizes.back), sums(rows * sizes.sums);
  const auto back = backward_of<T>(options, in, outputs, sums.zeros());
  kernels.pack_back(cell.shape, back.d_inputs ? in.at<T>(kKernel) : nullptr, in.at<T>(kRecurrent),
                    packed.data());
  go_back<Traits>(options, cell, packed.data(), back);
  add_rows(rows, sizes.sums, sums.data());

  const auto output = [&](size_t index) { return static_cast<T*>(outputs[index]); };
  const bool has_bias = in.at<T>(kBias) != nullptr;
  kernels.write_sums(cell.shape, sums.data(),
                     {output(2), output(3), has_bias ? output(4) : nullptr,
                      has_bias && kArrays.recurrent_bias ? output(5) : nullptr});
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
