// The kernels of SimpleRNN, GRU and LSTM, of every instruction set, in float and double, against a
// plain reference, which is itself held against finite differences.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "check.h"
#include "engine/cpu_level.h"
#include "recurrent_cases.h"

namespace ringar::test {
namespace {

template <typename Cell>
void check_against_reference(const Recurrent& level, const Layer& layer) {
  const std::string name = describe<Cell>(level, layer);
  Problem<Cell> p(layer);
  Reference<Cell> reference(p);
  run_forward(p, level);
  Doubles h;
  for (int64_t b = 0; b < layer.shape.batch; ++b) {
    const std::vector<Doubles> states = reference.states(b);
    for (size_t t = 1; t < states.size(); ++t)
      h.insert(h.end(), states[t].begin(), states[t].begin() + layer.shape.units);
  }
  expect_close(p.h, h, name + ", h");
  run_backward(p, level);
  reference.backward(0, layer.shape.batch);
  expect_same_gradients(p, reference, name);
  expect_close(p.d_h0, reference.d_h0, name + ", d_h0");
}

// c_t, which is a part of an LSTM's state, is kept for every step, masked ones included.
TEST(recurrent_lstm_keeps_its_carry) {
  for (const Recurrent& level : recurrent_levels())
    for (Masking masking : {Masking::kNone, Masking::kRandom, Masking::kLeading, Masking::kAll}) {
      const Layer layer{{17, 9, 2, 20}, Activation::kTanh, Activation::kSigmoid, masking};
      Problem<Lstm<double>> p(layer);
      const Reference<Lstm<double>> reference(p);
      run_forward(p, level);
      Doubles received, expected;
      for (int64_t b = 0; b < 17; ++b) {
        const std::vector<Doubles> states = reference.states(b);
        for (int64_t t = 0; t < 9; ++t) {
          const Doubles& state = states[static_cast<size_t>(t) + 1];
          expected.insert(expected.end(), state.begin() + 20, state.end());
          const auto c = p.cache.begin() + ((b * 9 + t) * 5 + 4) * 20;
          received.insert(received.end(), c, c + 20);
        }
      }
      expect_close(received, expected, describe<Lstm<double>>(level, layer) + ", c");
    }
}

TEST(recurrent_every_size) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    for (int64_t units : {1, 2, 3, 5, 7, 8, 16, 17, 20, 33, 64})
      for (int64_t batch : {1, 2, 3, 5, 16, 17})
        check_against_reference<Cell>(level, {{batch, 4, 1 + units % 3, units}});
    for (int64_t batch = 6; batch < 16; ++batch)
      check_against_reference<Cell>(level, {{batch, 3, 2, 9}});
    for (int64_t units = 9; units < 32; ++units)
      check_against_reference<Cell>(level, {{4, 3, 1, units}});
  });
}

// Kernels that are not in L1, nor in L2: products go in pieces, blocks have more examples, outer
// products are packed.
TEST(recurrent_large) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    if (std::string(level.name) != recurrent_levels().back().name) return;  // the others take long
    if (CellOf<Cell>::kGates == 4) check_against_reference<Cell>(level, {{17, 2, 33, 385}});
    Layer layer{{66, 2, 97, 190}};
    layer.masking = Masking::kRandom;
    check_against_reference<Cell>(level, layer);
  });
}

TEST(recurrent_every_length) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    for (int64_t steps : {0, 1, 2, 15, 70, 1100})
      check_against_reference<Cell>(level, {{1, steps, 2, 3}});
    for (int64_t steps : {0, 1, 16, 41, 150})
      for (Masking masking : {Masking::kNone, Masking::kRandom})
        check_against_reference<Cell>(
            level, {{18, steps, 1, 20}, Activation::kTanh, Activation::kSigmoid, masking});
    check_against_reference<Cell>(level, {{0, 5, 2, 3}});
  });
}

TEST(recurrent_every_number_of_features) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    for (int64_t features : {0, 1, 2, 3, 7, 16, 17, 40, 300})
      for (auto [batch, steps, units] :
           {std::array<int64_t, 3>{3, 5, 20}, {17, 19, 7}, {1, 40, 16}})
        for (int bits = 0; bits < 4; ++bits) {
          Layer layer{{batch, steps, features, units}};
          layer.masking = bits & 1 ? Masking::kRandom : Masking::kNone;
          layer.bias = !(bits & 1);
          layer.d_inputs = !(bits & 2);
          check_against_reference<Cell>(level, layer);
        }
    check_against_reference<Cell>(level, {{2, 0, 40, 5}});
    check_against_reference<Cell>(level, {{0, 2, 0, 5}});
  });
}

TEST(recurrent_masked_inputs_do_not_count) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    const Layer layer{{17, 9, 3, 20}, Activation::kTanh, Activation::kSigmoid, Masking::kRandom};
    Problem<Cell> p(layer), other(layer);
    for (int64_t b = 0; b < 17; ++b)
      for (int64_t t = 0; t < 9; ++t)
        for (int64_t f = 0; p.is_masked(b, t) && f < 3; ++f)
          other.inputs[static_cast<size_t>((b * 9 + t) * 3 + f)] += 100;
    for (Problem<Cell>* problem : {&p, &other}) {
      run_forward(*problem, level);
      run_backward(*problem, level);
    }
    EXPECT(p.h == other.h);
    EXPECT(p.d_kernel == other.d_kernel && p.d_bias == other.d_bias);
    EXPECT(p.d_inputs == other.d_inputs && p.d_recurrent == other.d_recurrent);
    for (int64_t row = 0; row < 17 * 9; ++row)
      for (int64_t f = 0; p.is_masked(row / 9, row % 9) && f < 3; ++f)
        EXPECT_EQ(p.d_inputs[static_cast<size_t>(row * 3 + f)], 0);
  });
}

TEST(recurrent_every_activation_mask_and_absence) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    for (Activation activation : kActivations)
      for (Masking masking : {Masking::kNone, Masking::kRandom, Masking::kLeading, Masking::kAll})
        for (int bits = 0; bits < 8; ++bits)
          check_against_reference<Cell>(level, {{5, 6, 2, 19},
                                                activation,
                                                kGateActivations[bits % 3],
                                                masking,
                                                !(bits & 1),
                                                !(bits & 2),
                                                !(bits & 4)});
  });
}

// How much the loss changes with each of `variables`.
template <typename Cell>
Doubles finite_differences(Reference<Cell>& reference, Doubles& variables) {
  constexpr double kStep = 1e-6;
  Doubles differences;
  for (double& x : variables) {
    const double saved = x;
    x = saved + kStep;
    const double loss = reference.loss();
    x = saved - kStep;
    differences.push_back((loss - reference.loss()) / (2 * kStep));
    x = saved;
  }
  return differences;
}

TEST(recurrent_backward_is_what_finite_differences_say) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    using T = typename CellOf<Cell>::T;
    const double tolerance = std::is_same_v<T, float> ? 1e-4 : 1e-7;
    for (Activation activation : kActivations) {
      const Layer layer{{2, 4, 2, 3}, activation, Activation::kSigmoid, Masking::kRandom};
      Problem<Cell> p(layer);
      Reference<Cell> reference(p);
      run_forward(p, level);
      run_backward(p, level);
      const std::string name = describe<Cell>(level, layer);
      const auto check = [&](const std::vector<T>& received, Doubles& variables) {
        expect_close(received, finite_differences(reference, variables), name, tolerance);
      };
      check(p.d_inputs, reference.inputs);
      check(p.d_kernel, reference.kernel);
      check(p.d_bias, reference.bias);
      check(p.d_h0, reference.h0);
      check(p.d_recurrent, reference.recurrent);
      check(p.d_recurrent_bias, reference.recurrent_bias);
    }
  });
}

// Every array has what `backward` wrote for [first, last), and nothing else.
template <typename T>
void expect_rows(const std::vector<T>& received, const std::vector<T>& expected, int64_t batch,
                 int64_t first, int64_t last, T unwritten) {
  const size_t row = expected.size() / static_cast<size_t>(batch);
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto b = static_cast<int64_t>(i / row);
    if (b >= first && b < last)
      EXPECT(std::fabs(received[i] - expected[i]) < kTolerance<T>);
    else
      EXPECT_EQ(received[i], unwritten);
  }
}

TEST(recurrent_ranges_keep_to_themselves) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    using T = typename CellOf<Cell>::T;
    for (int64_t units : {1, 3, 20})
      for (auto [first, last] : {std::pair<int64_t, int64_t>{0, 3}, {3, 4}, {4, 23}, {7, 7}}) {
        const Layer layer{{23, 5, 3, units}};
        Problem<Cell> batch(layer), part(layer);
        run_forward(batch, level);
        run_backward(batch, level);
        run_forward(part, level, first, last);
        expect_rows(part.h, batch.h, 23, first, last, part.kUnwritten);
        run_backward(part, level, first, last);
        expect_rows(part.d_inputs, batch.d_inputs, 23, first, last, part.kUnwritten);
        expect_rows(part.d_h0, batch.d_h0, 23, first, last, part.kUnwritten);
        Reference<Cell> reference(part);
        reference.backward(first, last);
        reference.d_inputs.assign(part.d_inputs.begin(), part.d_inputs.end());
        expect_same_gradients(part, reference, describe<Cell>(level, layer));
        part.forget_gradients();
        if constexpr (CellOf<Cell>::kStates == 1)
          run_way_back(part, level, [&](const auto& kernels, const T* packed, const auto& back) {
            kernels.gradients(part.cell(), packed, back, batch.h.data(), first, last);
          });
        expect_rows(part.d_inputs, part.d_inputs, 23, first, last, part.kUnwritten);
        static_assert(std::is_floating_point_v<T>);
      }
  });
}

// The steps [begin, end) of rows of `width` elements for each step of each example.
template <typename E>
std::vector<E> stretch_of(const std::vector<E>& all, const RecurrentShape& shape, int64_t width,
                          int64_t begin, int64_t end) {
  std::vector<E> part;
  for (int64_t b = 0; b < shape.batch && !all.empty(); ++b) {
    const auto example = all.begin() + b * shape.steps * width;
    part.insert(part.end(), example + begin * width, example + end * width);
  }
  return part;
}

// The stretch as a problem of its own. Its kernels are not to be read: they are packed beforehand.
template <typename Cell>
Problem<Cell> stretch_of(const Problem<Cell>& problem, int64_t begin, int64_t end) {
  using T = typename CellOf<Cell>::T;
  const RecurrentShape& shape = problem.layer.shape;
  Layer layer = problem.layer;
  layer.shape.steps = end - begin;
  Problem<Cell> part(layer);
  part.inputs = stretch_of(problem.inputs, shape, shape.features, begin, end);
  part.d_states = stretch_of(problem.d_states, shape, shape.units, begin, end);
  part.mask = stretch_of(problem.mask, shape, 1, begin, end);
  part.kernel.assign(part.kernel.size(), std::numeric_limits<T>::quiet_NaN());
  part.recurrent.assign(part.recurrent.size(), std::numeric_limits<T>::quiet_NaN());
  return part;
}

// The state after the last step, as h0 has it.
template <typename Cell>
auto last_state(const Problem<Cell>& p) {
  const RecurrentShape& s = p.layer.shape;
  std::vector<typename CellOf<Cell>::T> state;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t row = (b + 1) * s.steps - 1;
    const auto h = p.h.begin() + row * s.units;
    state.insert(state.end(), h, h + s.units);
    if (CellOf<Cell>::kStates == 1) continue;
    const auto c = p.cache.begin() + (row * CellOf<Cell>::kKept + 4) * s.units;
    state.insert(state.end(), c, c + s.units);
  }
  return state;
}

template <typename Cell>
void check_stretches(const Recurrent& level, const Layer& layer, int64_t steps) {
  const std::string name = describe<Cell>(level, layer) + ", in stretches of " + show(steps);
  const auto& kernels = kernels_of<Cell>(*level.kernels);
  const RecurrentShape& shape = layer.shape;
  Problem<Cell> reference(layer);
  run_forward(reference, level);
  run_backward(reference, level);
  const auto packed = packed_of(reference, kernels),
             packed_back = packed_back_of(reference, kernels);
  auto sums = zeros_for_sums(reference, kernels);

  std::vector<Problem<Cell>> parts;
  for (int64_t begin = 0; begin < shape.steps; begin += steps) {
    auto state = parts.empty() ? reference.h0 : last_state(parts.back());
    parts.push_back(stretch_of(reference, begin, std::min(begin + steps, shape.steps)));
    parts.back().h0 = std::move(state);
    kernels.forward(parts.back().cell(), packed.data(), 0, shape.batch);
  }
  auto d_last = reference.d_last;
  for (int64_t i = static_cast<int64_t>(parts.size()) - 1; i >= 0; --i) {
    Problem<Cell>& part = parts[static_cast<size_t>(i)];
    part.d_last = d_last;
    kernels.backward(part.cell(), packed_back.data(), part.backward(sums), 0, shape.batch);
    d_last = part.d_h0;
    const int64_t begin = i * steps, end = begin + part.layer.shape.steps;
    expect_close(part.h, stretch_of(reference.h, shape, shape.units, begin, end), name + ", h");
    if (layer.d_inputs)
      expect_close(part.d_inputs, stretch_of(reference.d_inputs, shape, shape.features, begin, end),
                   name + ", d_inputs");
  }
  expect_close(parts[0].d_h0, reference.d_h0, name + ", d_h0");
  Problem<Cell> output(layer);
  kernels.write_sums(shape, sums.data(), output.weights());
  output.layer.d_inputs = false;
  expect_same_gradients(output, reference, name);
}

TEST(recurrent_stretches_share_what_is_packed_and_summed) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    for (int64_t steps : {1, 3, 7, 11})
      for (auto [batch, units] : {std::pair<int64_t, int64_t>{1, 5}, {3, 20}, {17, 33}})
        for (int64_t features : {1, 40}) {
          Layer layer{{batch, 11, features, units}};
          layer.masking = steps & 2 ? Masking::kRandom : Masking::kNone;
          layer.d_inputs = units != 20;
          check_stretches<Cell>(level, layer, steps);
        }
  });
}

TEST(recurrent_nan_stays_in_its_example) {
  for_all([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    using T = typename CellOf<Cell>::T;
    for (int64_t units : {3, 20}) {
      constexpr int64_t kFeatures = 2;
      const Layer layer{{17, 6, kFeatures, units}};
      Problem<Cell> clean(layer), dirty(layer);
      const int64_t b = 5, t = 2, row = b * 6 + t;
      for (int64_t j = 0; j < kFeatures; ++j)
        dirty.inputs[static_cast<size_t>(row * kFeatures + j)] =
            std::numeric_limits<T>::quiet_NaN();
      for (Problem<Cell>* p : {&clean, &dirty}) {
        run_forward(*p, level);
        run_backward(*p, level);
      }
      for (size_t i = 0; i < clean.h.size(); ++i) {
        const auto at = static_cast<int64_t>(i) / units;
        if (at / 6 == b && at % 6 >= t)
          EXPECT(std::isnan(dirty.h[i]));
        else
          EXPECT_EQ(dirty.h[i], clean.h[i]);
      }
      for (size_t i = 0; i < clean.d_inputs.size(); ++i)
        if (static_cast<int64_t>(i) / kFeatures / 6 != b)
          EXPECT_EQ(dirty.d_inputs[i], clean.d_inputs[i]);
    }
  });
}

// Through layers without a recurrence or inputs, 19 as their biases at a time: the activation
// alone.
template <typename T>
std::vector<T> activated(const Recurrent& level, Activation activation, const std::vector<T>& z) {
  constexpr size_t kUnits = 19;
  const auto& kernels = kernels_of<SimpleRnn<T>>(*level.kernels);
  const RecurrentShape shape{1, 1, 0, kUnits};
  const std::vector<T> zeros(kUnits * kUnits);
  std::vector<T> packed(static_cast<size_t>(kernels.sizes(shape).forth));
  std::vector<T> all, bias(kUnits), h(kUnits);
  for (size_t i = 0; i < z.size(); i += kUnits) {
    const size_t count = std::min(kUnits, z.size() - i);
    std::copy_n(z.data() + i, count, bias.data());
    const SimpleRnn<T> cell{shape,        activation,   {nullptr, nullptr, bias.data()},
                            zeros.data(), zeros.data(), nullptr,
                            h.data()};
    kernels.forward(cell, packed.data(), 0, 1);
    all.insert(all.end(), h.data(), h.data() + count);
  }
  return all;
}

template <typename T>
void check_activations(const Recurrent& level) {
  const double tolerance = std::is_same_v<T, float> ? 2e-7 : 5e-16;
  std::vector<T> z;
  for (int i = -40000; i <= 40000; ++i) z.push_back(static_cast<T>(i) / T(1000));
  for (int i = -300; i < 300; ++i) z.push_back(static_cast<T>(std::pow(1.2, i) * (i & 1 ? 1 : -1)));
  for (Activation activation : kActivations) {
    const std::vector<T> h = activated(level, activation, z);
    for (size_t i = 0; i < z.size(); ++i) {
      const double expected = value_of(activation, static_cast<double>(z[i]));
      if (!(std::fabs(static_cast<double>(h[i]) - expected) <=
            tolerance * std::fmax(1, std::fabs(expected))))
        fail(__FILE__, __LINE__,
             std::string(level.name) + ", activation " + show(activation) + " of " + show(z[i]) +
                 ": expected " + show(expected) + ", received " + show(h[i]));
    }
    const T nan = std::numeric_limits<T>::quiet_NaN();
    EXPECT(std::isnan(activated<T>(level, activation, {0, nan, 1})[1]));
  }
  const T infinity = std::numeric_limits<T>::infinity(), far = std::is_same_v<T, float> ? 10 : 21;
  for (T x : {far, T(1e30), infinity}) {
    EXPECT_EQ(activated<T>(level, Activation::kTanh, {x})[0], T(1));
    EXPECT_EQ(activated<T>(level, Activation::kTanh, {-x})[0], T(-1));
  }
  EXPECT_EQ(activated<T>(level, Activation::kSigmoid, {infinity})[0], T(1));
  EXPECT(activated<T>(level, Activation::kSigmoid, {-infinity})[0] < T(1e-37));
}

TEST(recurrent_activations) {
  for (const Recurrent& level : recurrent_levels()) {
    check_activations<float>(level);
    check_activations<double>(level);
  }
}

TEST(recurrent_dispatches_to_a_known_level) {
  for (const Recurrent& level : recurrent_levels())
    if (std::string(level.name) == cpu_level_name()) {
      EXPECT(&simple_rnn_kernels<float>() == &level.kernels->simple_rnn_float);
      EXPECT(&simple_rnn_kernels<double>() == &level.kernels->simple_rnn_double);
      EXPECT(&gru_kernels<float>() == &level.kernels->gru_float);
      EXPECT(&gru_kernels<double>() == &level.kernels->gru_double);
      EXPECT(&lstm_kernels<float>() == &level.kernels->lstm_float);
      EXPECT(&lstm_kernels<double>() == &level.kernels->lstm_double);
    }
}

}  // namespace
}  // namespace ringar::test
