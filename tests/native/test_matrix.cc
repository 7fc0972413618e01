// The products of small matrices, of every instruction set, against loops.

#include "check.h"
#include "kernel_levels.h"
#include "scan/matrix_levels.h"

namespace ringar::test {
namespace {

template <typename T>
void expect_products(const KernelLevel<MatrixKernels<T>>& level, int64_t count, int64_t size) {
  const int64_t matrix = size * size;
  const auto a = exact_numbers<T>(count * matrix, 1), b = exact_numbers<T>(count * matrix, 2);
  std::vector<T> c(static_cast<size_t>(count * matrix + 1), T(kUntouched));
  level.kernels->multiply(count, size, a.data(), b.data(), c.data());
  for (int64_t e = 0; e < count; ++e)
    for (int64_t i = 0; i < size; ++i)
      for (int64_t j = 0; j < size; ++j) {
        T sum = 0;
        for (int64_t k = 0; k < size; ++k)
          sum += a[static_cast<size_t>(e * matrix + i * size + k)] *
                 b[static_cast<size_t>(e * matrix + k * size + j)];
        EXPECT_EQ(c[static_cast<size_t>(e * matrix + i * size + j)], sum);
      }
  EXPECT_EQ(c.back(), T(kUntouched));
}

template <typename T>
void expect_applied(const KernelLevel<MatrixKernels<T>>& level, int64_t count, int64_t size,
                    bool as_row, bool adds) {
  const int64_t matrix = size * size, x_stride = size + 3, z_stride = size + 1;
  const auto a = exact_numbers<T>(count * matrix, 3), x = exact_numbers<T>(count * x_stride, 4),
             z = exact_numbers<T>(count * z_stride, 5);
  std::vector<T> y(static_cast<size_t>(count * size + 1), T(kUntouched));
  const auto apply = as_row ? level.kernels->apply_to_row : level.kernels->apply_to_column;
  apply(count, size, {x.data(), x_stride}, a.data(), {adds ? z.data() : nullptr, z_stride},
        {y.data(), size});
  for (int64_t e = 0; e < count; ++e)
    for (int64_t i = 0; i < size; ++i) {
      T sum = adds ? z[static_cast<size_t>(e * z_stride + i)] : T(0);
      for (int64_t k = 0; k < size; ++k)
        sum += x[static_cast<size_t>(e * x_stride + k)] *
               a[static_cast<size_t>(e * matrix + (as_row ? k * size + i : i * size + k))];
      EXPECT_EQ(y[static_cast<size_t>(e * size + i)], sum);
    }
  EXPECT_EQ(y.back(), T(kUntouched));
}

template <typename T>
void expect_all() {
  for (const auto& level : kernel_levels<MatrixKernels<T>, MatrixLevels<T>>())
    for (const int64_t size :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 33, 48, 63, 64, 65, 70, 129})
      for (const int64_t count : {1, 2, 5, 16, 19}) {
        expect_products(level, count, size);
        for (const bool as_row : {false, true})
          for (const bool adds : {false, true}) expect_applied(level, count, size, as_row, adds);
      }
}

}  // namespace

TEST(matrix_products_are_exact_in_float) {
  expect_all<float>();
}

TEST(matrix_products_are_exact_in_double) {
  expect_all<double>();
}

}  // namespace ringar::test
