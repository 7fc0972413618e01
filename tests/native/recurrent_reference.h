// SimpleRNN, GRU and LSTM as plainly as they can be written, in double, one example at a time; and
// what a test of their kernels needs: a problem of random numbers in T, and its cell.

#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "scan/recurrent.h"

namespace ringar::test {

template <typename Cell>
struct CellOf;
template <typename U>
struct CellOf<SimpleRnn<U>> {
  using T = U;
  static constexpr int kGates = 1, kStates = 1, kKept = 0;
};
template <typename U>
struct CellOf<Gru<U>> {
  using T = U;
  static constexpr int kGates = 3, kStates = 1, kKept = 4;
};
template <typename U>
struct CellOf<Lstm<U>> {
  using T = U;
  static constexpr int kGates = 4, kStates = 2, kKept = 5;
};

enum class Masking { kNone, kRandom, kLeading, kAll };

struct Layer {
  RecurrentShape shape;
  Activation activation = Activation::kTanh, recurrent_activation = Activation::kSigmoid;
  Masking masking = Masking::kNone;
  bool bias = true, d_states = true, d_last = true, d_inputs = true;
};

template <typename T>
std::vector<T> random_numbers(int64_t count, double scale, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(-scale, scale);
  std::vector<T> numbers(static_cast<size_t>(count));
  for (T& x : numbers) x = static_cast<T>(uniform(generator));
  return numbers;
}

inline std::vector<uint8_t> random_mask(const Layer& layer) {
  const RecurrentShape& s = layer.shape;
  std::vector<uint8_t> mask;
  if (layer.masking == Masking::kNone) return mask;
  std::mt19937_64 generator(7);
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t t = 0; t < s.steps; ++t)
      mask.push_back(layer.masking == Masking::kRandom    ? generator() % 3 != 0
                     : layer.masking == Masking::kLeading ? t >= b % (s.steps + 1)
                                                          : 0);
  return mask;
}

// What a layer reads, and what it is to write.
template <typename Cell>
struct Problem {
  using T = typename CellOf<Cell>::T;
  static constexpr int kGates = CellOf<Cell>::kGates, kStates = CellOf<Cell>::kStates;

  Layer layer;
  int64_t units;
  std::vector<T> inputs, kernel, bias, h0, recurrent, recurrent_bias, d_states, d_last, h, cache;
  std::vector<uint8_t> mask;
  std::vector<T> d_inputs, d_kernel, d_bias, d_h0, d_recurrent, d_recurrent_bias;

  explicit Problem(const Layer& layer) : layer(layer), units(layer.shape.units) {
    const int64_t rows = layer.shape.batch * layer.shape.steps, n = units;
    const int64_t features = layer.shape.features;
    const double scale = 1.5 / std::sqrt(static_cast<double>(n));
    inputs = random_numbers<T>(rows * features, 1.0, 1);
    kernel = random_numbers<T>(features * kGates * n,
                               1 / std::sqrt(static_cast<double>(features) + 1), 8);
    h0 = random_numbers<T>(layer.shape.batch * kStates * n, 0.5, 2);
    recurrent = random_numbers<T>(n * kGates * n, scale, 3);
    if (layer.bias) bias = random_numbers<T>(kGates * n, 0.5, 9);
    if (layer.bias && kGates == 3) recurrent_bias = random_numbers<T>(kGates * n, 0.5, 4);
    if (layer.d_states) d_states = random_numbers<T>(rows * n, 1.0, 5);
    if (layer.d_last) d_last = random_numbers<T>(layer.shape.batch * kStates * n, 1.0, 6);
    mask = random_mask(layer);
    h.assign(static_cast<size_t>(rows * n), kUnwritten);
    cache.assign(static_cast<size_t>(rows * CellOf<Cell>::kKept * n), kUnwritten);
    forget_gradients();
  }

  static constexpr T kUnwritten = T(12345);

  void forget_gradients() {
    if (layer.d_inputs) d_inputs.assign(inputs.size(), kUnwritten);
    d_kernel.assign(kernel.size(), kUnwritten);
    d_bias.assign(bias.size(), kUnwritten);
    d_h0.assign(h0.size(), kUnwritten);
    d_recurrent.assign(recurrent.size(), kUnwritten);
    d_recurrent_bias.assign(recurrent_bias.size(), kUnwritten);
  }

  Cell cell() {
    const Projection<T> projection{or_null(inputs), or_null(kernel), or_null(bias)};
    if constexpr (kGates == 1)
      return {layer.shape,      layer.activation, projection, h0.data(),
              recurrent.data(), or_null(mask),    h.data()};
    else if constexpr (kGates == 3)
      return {layer.shape, layer.activation, layer.recurrent_activation, projection,
              h0.data(),   recurrent.data(), or_null(recurrent_bias),    or_null(mask),
              h.data(),    cache.data()};
    else
      return {layer.shape,   layer.activation, layer.recurrent_activation,
              projection,    h0.data(),        recurrent.data(),
              or_null(mask), h.data(),         cache.data()};
  }
  Backward<T> backward(std::vector<T>& sums) {
    return {or_null(d_states), or_null(d_last), or_null(d_inputs), d_h0.data(), sums.data()};
  }
  WeightGradients<T> weights() {
    return {or_null(d_kernel), d_recurrent.data(), or_null(d_bias), or_null(d_recurrent_bias)};
  }
  bool is_masked(int64_t b, int64_t t) const {
    return !mask.empty() && !mask[static_cast<size_t>(b * layer.shape.steps + t)];
  }

  template <typename E>
  static E* or_null(std::vector<E>& v) {
    return v.empty() ? nullptr : v.data();
  }
};

// The arrays of a problem in the order of the products of some kernels. They hold what must not be
// read where `pack` forgets to write.
template <typename P, typename Kernels>
std::vector<typename P::T> packed_of(P& p, const Kernels& kernels) {
  std::vector<typename P::T> packed(static_cast<size_t>(kernels.sizes(p.layer.shape).forth),
                                    P::kUnwritten);
  kernels.pack(p.layer.shape, P::or_null(p.kernel), p.recurrent.data(), packed.data());
  return packed;
}
template <typename P, typename Kernels>
std::vector<typename P::T> packed_back_of(P& p, const Kernels& kernels) {
  std::vector<typename P::T> packed(static_cast<size_t>(kernels.sizes(p.layer.shape).back),
                                    P::kUnwritten);
  kernels.pack_back(p.layer.shape, p.layer.d_inputs ? P::or_null(p.kernel) : nullptr,
                    p.recurrent.data(), packed.data());
  return packed;
}
template <typename P, typename Kernels>
std::vector<typename P::T> zeros_for_sums(const P& p, const Kernels& kernels) {
  return std::vector<typename P::T>(static_cast<size_t>(kernels.sizes(p.layer.shape).sums));
}

inline double value_of(Activation activation, double x) {
  switch (activation) {
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kHardSigmoid:
      return std::fmin(1, std::fmax(0, x / 6 + 0.5));
    case Activation::kLinear:
      break;
  }
  return x;
}
inline double slope_of(Activation activation, double y) {
  switch (activation) {
    case Activation::kTanh:
      return 1 - y * y;
    case Activation::kSigmoid:
      return y * (1 - y);
    case Activation::kRelu:
      return y > 0 ? 1 : 0;
    case Activation::kHardSigmoid:
      return y > 0 && y < 1 ? 1.0 / 6 : 0;
    case Activation::kLinear:
      break;
  }
  return 1;
}

using Doubles = std::vector<double>;

// A cell in double, with gradients of each step added up by `back`.
template <typename Cell>
struct Reference {
  static constexpr size_t kGates = CellOf<Cell>::kGates, kStates = CellOf<Cell>::kStates;

  Layer layer;
  size_t n, features;
  Doubles inputs, kernel, bias, h0, recurrent, recurrent_bias, d_states, d_last;
  std::vector<uint8_t> mask;
  Doubles d_inputs, d_kernel, d_bias, d_h0, d_recurrent, d_recurrent_bias;

  template <typename P>
  explicit Reference(const P& p)
      : layer(p.layer),
        n(static_cast<size_t>(p.units)),
        features(static_cast<size_t>(p.layer.shape.features)),
        inputs(p.inputs.begin(), p.inputs.end()),
        kernel(p.kernel.begin(), p.kernel.end()),
        bias(p.bias.begin(), p.bias.end()),
        h0(p.h0.begin(), p.h0.end()),
        recurrent(p.recurrent.begin(), p.recurrent.end()),
        recurrent_bias(p.recurrent_bias.begin(), p.recurrent_bias.end()),
        d_states(p.d_states.begin(), p.d_states.end()),
        d_last(p.d_last.begin(), p.d_last.end()),
        mask(p.mask),
        d_inputs(inputs.size()),
        d_kernel(kernel.size()),
        d_bias(bias.size()),
        d_h0(h0.size()),
        d_recurrent(recurrent.size()),
        d_recurrent_bias(recurrent_bias.size()) {}

  size_t row(int64_t b, int64_t t) const { return static_cast<size_t>(b * layer.shape.steps + t); }

  Doubles projected(size_t row) const {
    Doubles x(kGates * n);
    for (size_t j = 0; j < kGates * n; ++j) {
      x[j] = bias.empty() ? 0 : bias[j];
      for (size_t f = 0; f < features; ++f)
        x[j] += inputs[row * features + f] * kernel[f * kGates * n + j];
    }
    return x;
  }

  // z, r, c, i_c, each of n; SimpleRNN has its new state in the place of c. LSTM: i, f, g, o.
  Doubles gates(const Doubles& previous, size_t row) const {
    const Doubles x = projected(row);
    Doubles inner(kGates * n), out(4 * n);
    for (size_t j = 0; j < kGates * n; ++j) {
      inner[j] = recurrent_bias.empty() ? 0 : recurrent_bias[j];
      for (size_t k = 0; k < n; ++k) inner[j] += previous[k] * recurrent[k * kGates * n + j];
    }
    for (size_t j = 0; j < kGates * n && kGates == 4; ++j)
      out[j] =
          value_of(j / n == 2 ? layer.activation : layer.recurrent_activation, x[j] + inner[j]);
    for (size_t j = 0; j < n && kGates < 4; ++j) {
      if (kGates == 1) {
        out[2 * n + j] = value_of(layer.activation, x[j] + inner[j]);
        continue;
      }
      out[j] = value_of(layer.recurrent_activation, x[j] + inner[j]);
      out[n + j] = value_of(layer.recurrent_activation, x[n + j] + inner[n + j]);
      out[3 * n + j] = inner[2 * n + j];
      out[2 * n + j] = value_of(layer.activation, x[2 * n + j] + out[n + j] * out[3 * n + j]);
    }
    return out;
  }

  Doubles next(const Doubles& previous, size_t row) const {
    if (!mask.empty() && !mask[row]) return previous;
    const Doubles g = gates(previous, row);
    Doubles h(kStates * n);
    for (size_t j = 0; j < n; ++j) {
      if (kGates < 4) {
        h[j] = g[j] * previous[j] + (1 - g[j]) * g[2 * n + j];
      } else {
        h[n + j] = g[n + j] * previous[n + j] + g[j] * g[2 * n + j];
        h[j] = g[3 * n + j] * value_of(layer.activation, h[n + j]);
      }
    }
    return h;
  }

  Doubles first(int64_t b) const {
    const auto size = static_cast<int64_t>(kStates * n);
    return Doubles(h0.begin() + b * size, h0.begin() + (b + 1) * size);
  }

  // The states of one example, the first one before the first step. Those of an LSTM: h, then c.
  std::vector<Doubles> states(int64_t b) const {
    std::vector<Doubles> all{first(b)};
    for (int64_t t = 0; t < layer.shape.steps; ++t) all.push_back(next(all.back(), row(b, t)));
    return all;
  }

  double loss() const {
    double sum = 0;
    for (int64_t b = 0; b < layer.shape.batch; ++b) {
      const std::vector<Doubles> h = states(b);
      for (size_t j = 0; j < kStates * n && !d_last.empty(); ++j)
        sum += d_last[static_cast<size_t>(b) * kStates * n + j] * h.back()[j];
      for (size_t j = 0; j < n; ++j)
        for (int64_t t = 0; t < layer.shape.steps && !d_states.empty(); ++t)
          sum += d_states[row(b, t) * n + j] * h[static_cast<size_t>(t) + 1][j];
    }
    return sum;
  }

  // Of one step, from the gradient with respect to its state to that of the one before.
  Doubles back(const Doubles& gradient, const Doubles& previous, size_t row) {
    if (!mask.empty() && !mask[row]) return gradient;
    Doubles inner(kGates * n), d_x(kGates * n), to(kStates * n);
    back_to_gates(gradient, previous, row, inner, d_x, to);
    for (size_t k = 0; k < n; ++k)
      for (size_t j = 0; j < kGates * n; ++j) {
        to[k] += inner[j] * recurrent[k * kGates * n + j];
        d_recurrent[k * kGates * n + j] += previous[k] * inner[j];
      }
    for (size_t j = 0; j < d_recurrent_bias.size(); ++j) d_recurrent_bias[j] += inner[j];
    project_back(d_x, row);
    return to;
  }

  // What goes through the recurrent kernel, to x W + b, and past both to the state before.
  void back_to_gates(const Doubles& gradient, const Doubles& previous, size_t row, Doubles& inner,
                     Doubles& d_x, Doubles& to) const {
    const Doubles g = gates(previous, row);
    if constexpr (kGates == 4) {
      lstm_back_to_gates(gradient, previous, g, inner, to);
      d_x = inner;
      return;
    }
    for (size_t j = 0; j < n; ++j) {
      const double z = g[j], r = g[n + j], c = g[2 * n + j];
      const double d_c = gradient[j] * (1 - z) * slope_of(layer.activation, c);
      to[j] = gradient[j] * z;
      inner[(kGates - 1) * n + j] = d_c * (kGates == 1 ? 1 : r);
      d_x[(kGates - 1) * n + j] = d_c;
      if (kGates == 1) continue;
      const double d_z = gradient[j] * (previous[j] - c);
      d_x[j] = inner[j] = d_z * slope_of(layer.recurrent_activation, z);
      d_x[n + j] = inner[n + j] = d_c * g[3 * n + j] * slope_of(layer.recurrent_activation, r);
    }
  }

  void lstm_back_to_gates(const Doubles& gradient, const Doubles& previous, const Doubles& g,
                          Doubles& d_z, Doubles& to) const {
    const Activation activation = layer.activation, sigma = layer.recurrent_activation;
    for (size_t j = 0; j < n; ++j) {
      const double i = g[j], f = g[n + j], c = g[2 * n + j], o = g[3 * n + j];
      const double shown = value_of(activation, f * previous[n + j] + i * c);
      const double d_c = gradient[n + j] + gradient[j] * o * slope_of(activation, shown);
      to[n + j] = d_c * f;
      d_z[j] = d_c * c * slope_of(sigma, i);
      d_z[n + j] = d_c * previous[n + j] * slope_of(sigma, f);
      d_z[2 * n + j] = d_c * i * slope_of(activation, c);
      d_z[3 * n + j] = gradient[j] * shown * slope_of(sigma, o);
    }
  }

  void project_back(const Doubles& d_x, size_t row) {
    for (size_t f = 0; f < features; ++f)
      for (size_t j = 0; j < kGates * n; ++j) {
        d_inputs[row * features + f] += d_x[j] * kernel[f * kGates * n + j];
        d_kernel[f * kGates * n + j] += d_x[j] * inputs[row * features + f];
      }
    for (size_t j = 0; j < d_bias.size(); ++j) d_bias[j] += d_x[j];
  }

  void backward(int64_t first_example, int64_t last_example) {
    for (int64_t b = first_example; b < last_example; ++b) {
      const std::vector<Doubles> h = states(b);
      Doubles gradient(kStates * n);
      for (size_t j = 0; j < gradient.size() && !d_last.empty(); ++j)
        gradient[j] = d_last[static_cast<size_t>(b) * gradient.size() + j];
      for (int64_t t = layer.shape.steps - 1; t >= 0; --t) {
        for (size_t j = 0; j < n && !d_states.empty(); ++j)
          gradient[j] += d_states[row(b, t) * n + j];
        gradient = back(gradient, h[static_cast<size_t>(t)], row(b, t));
      }
      for (size_t j = 0; j < gradient.size(); ++j)
        d_h0[static_cast<size_t>(b) * gradient.size() + j] = gradient[j];
    }
  }
};

}  // namespace ringar::test
