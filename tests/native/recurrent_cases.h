// What the tests of the recurrent kernels share: every instruction set, cell and type, and how
// results are compared.

#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "check.h"
#include "kernel_levels.h"
#include "recurrent_reference.h"
#include "scan/recurrent_levels.h"

namespace ringar::test {

using Recurrent = KernelLevel<RecurrentLevel>;

// Those that this machine can run.
inline std::vector<Recurrent> recurrent_levels() {
  std::vector<Recurrent> list{{"baseline", &recurrent_baseline}};
#if defined(__x86_64__)
  if (has_avx2()) list.push_back({"avx2", &recurrent_avx2});
  if (has_avx512()) list.push_back({"avx512", &recurrent_avx512});
#endif
  return list;
}

template <typename Cell>
const auto& kernels_of(const RecurrentLevel& level) {
  constexpr bool kFloat = std::is_same_v<typename CellOf<Cell>::T, float>;
  if constexpr (CellOf<Cell>::kGates == 1 && kFloat)
    return level.simple_rnn_float;
  else if constexpr (CellOf<Cell>::kGates == 1)
    return level.simple_rnn_double;
  else if constexpr (CellOf<Cell>::kGates == 3 && kFloat)
    return level.gru_float;
  else if constexpr (CellOf<Cell>::kGates == 3)
    return level.gru_double;
  else if constexpr (kFloat)
    return level.lstm_float;
  else
    return level.lstm_double;
}

template <typename Cell>
std::string describe(const Recurrent& level, const Layer& layer) {
  using T = typename CellOf<Cell>::T;
  constexpr int kGates = CellOf<Cell>::kGates;
  return std::string(level.name) +
         (kGates == 1   ? " SimpleRNN"
          : kGates == 3 ? " GRU"
                        : " LSTM") +
         (std::is_same_v<T, float> ? " float " : " double ") + show(layer.shape.batch) + " x " +
         show(layer.shape.steps) + " x " + show(layer.shape.units) + ", features " +
         show(layer.shape.features) + ", activation " + show(layer.activation) + ", masking " +
         show(layer.masking);
}

// `body(cell tag, level)` for the cells whose way back may be a scan, both types, and every level.
template <typename Body>
void for_all_scanned(Body body) {
  for (const Recurrent& level : recurrent_levels()) {
    body(static_cast<SimpleRnn<float>*>(nullptr), level);
    body(static_cast<SimpleRnn<double>*>(nullptr), level);
    body(static_cast<Gru<float>*>(nullptr), level);
    body(static_cast<Gru<double>*>(nullptr), level);
  }
}
// The same for all cells.
template <typename Body>
void for_all(Body body) {
  for_all_scanned(body);
  for (const Recurrent& level : recurrent_levels()) {
    body(static_cast<Lstm<float>*>(nullptr), level);
    body(static_cast<Lstm<double>*>(nullptr), level);
  }
}

template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 1e-4 : 1e-11;

template <typename T, typename W>
void expect_close(const std::vector<T>& received, const std::vector<W>& expected,
                  const std::string& name, double tolerance = kTolerance<T>) {
  EXPECT_EQ(received.size(), expected.size());
  double largest = 1;
  // No fmax: g++ 12.2 for aarch64 breaks down over it.
  for (W w : expected) largest = std::max(largest, std::fabs(static_cast<double>(w)));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = static_cast<double>(received[i]) - static_cast<double>(expected[i]);
    if (!(std::fabs(error) <= tolerance * largest))
      fail(__FILE__, __LINE__,
           name + ": [" + show(i) + "] expected " + show(expected[i]) + ", received " +
               show(received[i]));
  }
}

// All gradients of `received`, but for those with respect to h0.
template <typename P, typename Q>
void expect_same_gradients(const P& received, const Q& expected, const std::string& name) {
  if (received.layer.d_inputs)
    expect_close(received.d_inputs, expected.d_inputs, name + ", d_inputs");
  expect_close(received.d_kernel, expected.d_kernel, name + ", d_kernel");
  expect_close(received.d_bias, expected.d_bias, name + ", d_bias");
  expect_close(received.d_recurrent, expected.d_recurrent, name + ", d_recurrent");
  expect_close(received.d_recurrent_bias, expected.d_recurrent_bias, name + ", d_recurrent_bias");
}

// Of the examples [first, last).
template <typename Cell>
void run_forward(Problem<Cell>& p, const Recurrent& level, int64_t first, int64_t last) {
  const auto& kernels = kernels_of<Cell>(*level.kernels);
  const auto packed = packed_of(p, kernels);
  kernels.forward(p.cell(), packed.data(), first, last);
}
template <typename Cell>
void run_forward(Problem<Cell>& p, const Recurrent& level) {
  run_forward(p, level, 0, p.layer.shape.batch);
}

// `run(kernels, packed, backward)` is the way back, whose sums are written afterwards.
template <typename Cell, typename Run>
void run_way_back(Problem<Cell>& p, const Recurrent& level, const Run& run) {
  const auto& kernels = kernels_of<Cell>(*level.kernels);
  const auto packed = packed_back_of(p, kernels);
  auto sums = zeros_for_sums(p, kernels);
  run(kernels, packed.data(), p.backward(sums));
  kernels.write_sums(p.layer.shape, sums.data(), p.weights());
}
template <typename Cell>
void run_backward(Problem<Cell>& p, const Recurrent& level, int64_t first, int64_t last) {
  run_way_back(p, level, [&](const auto& kernels, const auto* packed, const auto& backward) {
    kernels.backward(p.cell(), packed, backward, first, last);
  });
}
template <typename Cell>
void run_backward(Problem<Cell>& p, const Recurrent& level) {
  run_backward(p, level, 0, p.layer.shape.batch);
}

inline constexpr Activation kActivations[] = {Activation::kTanh, Activation::kSigmoid,
                                              Activation::kRelu, Activation::kHardSigmoid,
                                              Activation::kLinear};

inline constexpr Activation kGateActivations[] = {Activation::kSigmoid, Activation::kHardSigmoid,
                                                  Activation::kTanh};

}  // namespace ringar::test
