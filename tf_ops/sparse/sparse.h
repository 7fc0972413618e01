// Products with the weights of a sparse layer, forward and backward.
//
// States are kept with one row per neuron and one column per example, so that a weight meets the
// states of all examples of a neuron in consecutive memory: vectors run over the batch, and the
// weights' irregular pattern decides only which rows are read. A layer reads the states of the
// neurons that this rank owns and those of ghosts, neurons of other ranks; they are two arrays, of
// which the columns of the weights count through the first and then the second.

#pragma once

#include <cstdint>

namespace ringar {

// Rows of `batch` elements in two arrays, counted through.
template <typename T>
struct TwoPartRows {
  T* interior;
  T* ghosts;
  int64_t own_rows;
  int64_t batch;

  T* at(int64_t row) const {
    return row < own_rows ? interior + row * batch : ghosts + (row - own_rows) * batch;
  }
};

// outputs[i] = bias[i] + sum of values[e] states[columns[e]], for e in offsets[i] … offsets[i + 1].
template <typename T>
struct SparseProduct {
  const int32_t *offsets, *columns;
  const T *values, *bias;  // the bias may be null
  TwoPartRows<const T> states;
  T* outputs;
};

// The way back, column by column: entry e of column j, for e in starts[j] … starts[j + 1], is in
// row rows[e], and places[e] is its place in `values`, which are sorted by rows.
//
//   d_states[j] = sum of values[places[e]] upstream[rows[e]]
//   d_values[places[e]] = <upstream[rows[e]], states[j]>
//
// One pass does both: each row of `upstream` is read once for two products, while the row of the
// states and the sum stay in registers. Columns share no output, so threads need no locks.
template <typename T>
struct SparseGradient {
  const int32_t *starts, *rows, *places;
  const T *values, *upstream;
  TwoPartRows<const T> states;
  bool needs_states;  // without it d_states stays as it is
  TwoPartRows<T> d_states;
  T* d_values;
};

template <typename T>
struct SparseKernels {
  // Rows, or columns, from `first` to before `last`.
  void (*multiply)(const SparseProduct<T>& product, int64_t first, int64_t last);
  void (*differentiate)(const SparseGradient<T>& gradient, int64_t first, int64_t last);
};

// Of the best instruction set of this processor; T is float or double.
template <typename T>
const SparseKernels<T>& sparse_kernels();

}  // namespace ringar
