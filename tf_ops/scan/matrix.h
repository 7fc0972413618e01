// Products of many small matrices, and of vectors with them.
//
// A slab is `count` square matrices of `size` rows, row-major, one after the other: one for each
// example of a batch.

#pragma once

#include <cstdint>

namespace ringar {

// One vector for each example of a slab; rows lie `stride` elements apart.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;
};

template <typename T>
struct MatrixKernels {
  // c = a b. c is none of the two.
  void (*multiply)(int64_t count, int64_t size, const T* a, const T* b, T* c);

  // y = x a + z, x, y and z being rows, and y = a x + z, where they are columns. Without z.data
  // nothing is added. y is neither x nor z.
  using Apply = void (*)(int64_t count, int64_t size, Rows<const T> x, const T* a, Rows<const T> z,
                         Rows<T> y);
  Apply apply_to_row, apply_to_column;
};

// Of the best instruction set of this processor; T is float or double.
template <typename T>
const MatrixKernels<T>& matrix_kernels();

}  // namespace ringar
