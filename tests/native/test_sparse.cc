// Products of sparse weights with states, of every instruction set, against loops.

#include "check.h"
#include "kernel_levels.h"
#include "sparse/sparse_levels.h"

namespace ringar::test {
namespace {

constexpr int64_t kRows = 11, kOwn = 7, kGhosts = 3;

// Row i has i % 4 entries and some more; by columns, they are in the order of their rows.
struct Pattern {
  std::vector<int32_t> offsets{0}, columns, starts{0}, rows, places;

  Pattern() {
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kOwn + kGhosts; ++j)
        if ((i * 5 + j * 3) % 7 < i % 4) columns.push_back(static_cast<int32_t>(j));
      offsets.push_back(static_cast<int32_t>(columns.size()));
    }
    for (int32_t j = 0; j < kOwn + kGhosts; ++j) {
      for (int32_t i = 0; i < kRows; ++i)
        for (int32_t e = offsets[static_cast<size_t>(i)]; e < offsets[static_cast<size_t>(i) + 1];
             ++e)
          if (columns[static_cast<size_t>(e)] == j) {
            rows.push_back(i);
            places.push_back(e);
          }
      starts.push_back(static_cast<int32_t>(rows.size()));
    }
  }
};

template <typename T>
struct Case {
  Pattern pattern;
  int64_t batch;
  std::vector<T> values, bias, interior, ghosts, upstream;

  explicit Case(int64_t batch)
      : batch(batch),
        values(exact_numbers<T>(static_cast<int64_t>(pattern.columns.size()), 1)),
        bias(exact_numbers<T>(kRows, 2)),
        interior(exact_numbers<T>(kOwn * batch, 3)),
        ghosts(exact_numbers<T>(kGhosts * batch, 4)),
        upstream(exact_numbers<T>(kRows * batch, 5)) {}

  TwoPartRows<const T> states() const { return {interior.data(), ghosts.data(), kOwn, batch}; }
  T state(int32_t column, int64_t b) const { return states().at(column)[b]; }
};

template <typename T>
void expect_product(const KernelLevel<SparseKernels<T>>& level, const Case<T>& c, bool has_bias) {
  std::vector<T> outputs(static_cast<size_t>(kRows * c.batch + 1), T(kUntouched));
  const SparseProduct<T> product{c.pattern.offsets.data(),
                                 c.pattern.columns.data(),
                                 c.values.data(),
                                 has_bias ? c.bias.data() : nullptr,
                                 c.states(),
                                 outputs.data()};
  level.kernels->multiply(product, 0, 4);  // in two stretches, as two threads do
  level.kernels->multiply(product, 4, kRows);
  for (size_t i = 0; i < kRows; ++i)
    for (int64_t b = 0; b < c.batch; ++b) {
      T sum = has_bias ? c.bias[i] : T(0);
      for (auto e = static_cast<size_t>(c.pattern.offsets[i]);
           e < static_cast<size_t>(c.pattern.offsets[i + 1]); ++e)
        sum += c.values[e] * c.state(c.pattern.columns[e], b);
      EXPECT_EQ(outputs[i * static_cast<size_t>(c.batch) + static_cast<size_t>(b)], sum);
    }
  EXPECT_EQ(outputs.back(), T(kUntouched));
}

template <typename T>
void expect_gradient(const KernelLevel<SparseKernels<T>>& level, const Case<T>& c,
                     bool needs_states) {
  constexpr int64_t columns = kOwn + kGhosts;
  const size_t entries = c.values.size();
  std::vector<T> d_values(entries + 1, T(kUntouched)),
      d_states(static_cast<size_t>(columns * c.batch + 1), T(kUntouched));
  const SparseGradient<T> gradient{
      c.pattern.starts.data(),
      c.pattern.rows.data(),
      c.pattern.places.data(),
      c.values.data(),
      c.upstream.data(),
      c.states(),
      needs_states,
      {d_states.data(), d_states.data() + kOwn * c.batch, kOwn, c.batch},
      d_values.data()};
  level.kernels->differentiate(gradient, 0, 5);
  level.kernels->differentiate(gradient, 5, columns);
  std::vector<T> sums(static_cast<size_t>(columns * c.batch), T(0));
  for (int32_t i = 0; i < kRows; ++i)
    for (auto e = static_cast<size_t>(c.pattern.offsets[static_cast<size_t>(i)]);
         e < static_cast<size_t>(c.pattern.offsets[static_cast<size_t>(i) + 1]); ++e) {
      T dot = 0;
      const int32_t j = c.pattern.columns[e];
      for (int64_t b = 0; b < c.batch; ++b) {
        const T up = c.upstream[static_cast<size_t>(i * c.batch + b)];
        dot += up * c.state(j, b);
        sums[static_cast<size_t>(j * c.batch + b)] += up * c.values[e];
      }
      EXPECT_EQ(d_values[e], dot);
    }
  for (size_t i = 0; i < sums.size(); ++i)
    EXPECT_EQ(d_states[i], needs_states ? sums[i] : T(kUntouched));
  EXPECT_EQ(d_values.back(), T(kUntouched));
  EXPECT_EQ(d_states.back(), T(kUntouched));
}

template <typename T>
void expect_all() {
  for (const int64_t batch :
       {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 100, 128, 129, 144, 200, 300}) {
    const Case<T> c(batch);
    for (const auto& level : kernel_levels<SparseKernels<T>, SparseLevels<T>>())
      for (const bool flag : {false, true}) {
        expect_product(level, c, flag);
        expect_gradient(level, c, flag);
      }
  }
}

}  // namespace

TEST(sparse_products_are_exact_in_float) {
  expect_all<float>();
}

TEST(sparse_products_are_exact_in_double) {
  expect_all<double>();
}

}  // namespace ringar::test
