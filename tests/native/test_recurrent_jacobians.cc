// The Jacobians of recurrent layers, against finite differences; and that the chain of them,
// followed by `gradients`, gives what `backward` gives.

#include "check.h"
#include "recurrent_cases.h"

namespace ringar::test {
namespace {

// The Jacobians of every step, one (batch, units, units) after the other.
template <typename Cell>
auto jacobians_of(Problem<Cell>& p, const Recurrent& level) {
  using T = typename CellOf<Cell>::T;
  const auto& kernels = kernels_of<Cell>(*level.kernels);
  const Cell cell = p.cell();
  const RecurrentShape& s = p.layer.shape;
  const int64_t size = s.units * s.units;
  std::vector<T> scratch(static_cast<size_t>(jacobian_scratch(cell)));
  std::vector<T> all(static_cast<size_t>(s.steps * s.batch * size), p.kUnwritten);
  kernels.prepare_jacobians(cell, scratch.data());
  // The last example first: what it writes must not be touched by those before.
  for (int64_t t = 0; t < s.steps; ++t)
    for (int64_t first = s.batch - 1; first >= 0; --first)
      kernels.jacobians(cell, scratch.data(), t, first, first + 1,
                        all.data() + (t * s.batch + first) * size);
  return all;
}

TEST(recurrent_jacobians_are_what_finite_differences_say) {
  for_all_scanned([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    constexpr double kStep = 1e-6;
    for (int64_t units : {1, 3, 8, 17, 20})
      for (Activation activation : kActivations) {
        const Layer layer{{3, 3, 2, units}, activation, Activation::kSigmoid, Masking::kRandom};
        Problem<Cell> p(layer);
        const Reference<Cell> reference(p);
        run_forward(p, level);
        const auto received = jacobians_of(p, level);
        Doubles expected(received.size());
        const auto n = static_cast<size_t>(units);
        for (int64_t b = 0; b < 3; ++b) {
          const std::vector<Doubles> h = reference.states(b);
          for (int64_t t = 0; t < 3; ++t)
            for (size_t j = 0; j < n; ++j) {
              Doubles plus = h[static_cast<size_t>(t)], minus = plus;
              plus[j] += kStep;
              minus[j] -= kStep;
              plus = reference.next(plus, reference.row(b, t));
              minus = reference.next(minus, reference.row(b, t));
              for (size_t i = 0; i < n; ++i)
                expected[(static_cast<size_t>(t * 3 + b) * n + i) * n + j] =
                    (plus[i] - minus[i]) / (2 * kStep);
            }
        }
        using T = typename CellOf<Cell>::T;
        expect_close(received, expected, describe<Cell>(level, layer),
                     std::is_same_v<T, float> ? 1e-5 : 1e-8);
      }
  });
}

// Down the chain by Jacobians, and from all gradients of states to the others by `gradients`.
template <typename Cell>
void check_jacobians_and_gradients(const Recurrent& level, const Layer& layer) {
  using T = typename CellOf<Cell>::T;
  Problem<Cell> p(layer);
  const RecurrentShape& s = layer.shape;
  const auto n = static_cast<size_t>(s.units);
  run_forward(p, level);
  run_backward(p, level);
  Problem<Cell> other = p;
  const std::vector<T> jacobians = jacobians_of(p, level);
  std::vector<T> d_h(p.h.size()), d_h0(p.h0.size());
  for (size_t b = 0; b < static_cast<size_t>(s.batch); ++b) {
    std::vector<T> gradient(p.d_last.begin() + static_cast<int64_t>(b * n),
                            p.d_last.begin() + static_cast<int64_t>((b + 1) * n));
    for (size_t t = static_cast<size_t>(s.steps); t-- > 0;) {
      const size_t at = (b * static_cast<size_t>(s.steps) + t) * n;
      for (size_t j = 0; j < n; ++j) d_h[at + j] = gradient[j] += p.d_states[at + j];
      const T* jacobian = jacobians.data() + (t * static_cast<size_t>(s.batch) + b) * n * n;
      std::vector<T> before(n);
      for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < n; ++j) before[j] += gradient[i] * jacobian[i * n + j];
      gradient = before;
    }
    for (size_t j = 0; j < n; ++j) d_h0[b * n + j] = gradient[j];
  }
  other.forget_gradients();
  run_way_back(other, level, [&](const auto& kernels, const T* packed, Backward<T> backward) {
    backward.d_states = backward.d_last = nullptr;
    backward.d_h0 = nullptr;
    kernels.gradients(other.cell(), packed, backward, d_h.data(), 0, s.batch);
  });
  const std::string name = describe<Cell>(level, layer);
  expect_close(d_h0, p.d_h0, name + ", d_h0");
  expect_same_gradients(other, p, name);
}

TEST(recurrent_jacobians_and_gradients_are_backward) {
  for_all_scanned([](auto* cell, const Recurrent& level) {
    using Cell = std::remove_pointer_t<decltype(cell)>;
    for (int64_t units : {1, 5, 16, 20, 33})
      for (int64_t batch : {1, 17})
        for (Masking masking : {Masking::kNone, Masking::kRandom, Masking::kLeading})
          check_jacobians_and_gradients<Cell>(
              level, {{batch, 23, 3, units}, Activation::kTanh, Activation::kSigmoid, masking});
  });
}

}  // namespace
}  // namespace ringar::test
