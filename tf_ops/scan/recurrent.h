// SimpleRNN and GRU, forward and backward: whole sequences in one call, a few examples at a time.
//
// Arrays are row-major and batch-major, as Keras has them: (batch, steps, units). `h0` is the state
// before the first step, h[:, t] the one after step t. Every function works on the examples
// [first, last) of the batch, all steps, and is called for different examples by different threads.
//
// A masked step (mask[b, t] == 0) hands the state on: h_t = h_{t-1}, whose Jacobian is the
// identity, and the gradient of what it read is 0. Without a mask, `mask` is null.

#pragma once

#include <cstdint>

namespace ringar {

// With derivatives known from the value y: 1; 1 - y^2; y (1 - y); y > 0; 1/6 for 0 < y < 1.
enum class Activation : int32_t { kLinear, kTanh, kSigmoid, kRelu, kHardSigmoid };

struct RecurrentShape {
  int64_t batch, steps, features, units;
};

// What a cell reads at each step, x_t W + b: the inputs (batch, steps, features), W of (features,
// gates x units), b of gates x units, or null. It is multiplied out a few steps at a time, and
// nowhere kept.
template <typename T>
struct Projection {
  const T *inputs, *kernel, *bias;
};

// h_t = activation(x_t W + b + h_{t-1} U), U of (units, units).
template <typename T>
struct SimpleRnn {
  RecurrentShape shape;
  Activation activation;
  Projection<T> z;
  const T *h0, *recurrent;
  const uint8_t* mask;
  T* h;  // written by forward, read by the others
};

// Keras' GRU with reset_after=True; U of (units, 3 units), gates in the order z (update), r
// (reset), c (candidate):
//   [x_z, x_r, x_c] = x_t W + b
//   [i_z, i_r, i_c] = h_{t-1} U + recurrent_bias
//   z = sigma(x_z + i_z), r = sigma(x_r + i_r), c = activation(x_c + r i_c)
//   h_t = z h_{t-1} + (1 - z) c
template <typename T>
struct Gru {
  RecurrentShape shape;
  Activation activation, recurrent_activation;
  Projection<T> x;
  const T *h0, *recurrent, *recurrent_bias;  // bias (3 units), or null
  const uint8_t* mask;
  T* h;
  T* kept;  // (batch, steps, 4 units): z, r, c, i_c of every step, for the way back
};

// What the way back gets and gives. `d_states`, gradients with respect to each h_t from outside of
// the chain, may be null (none but the last); `d_last` (batch, units), one more with respect to the
// last state, may be null, too. d_inputs, of the shape of the inputs, may be null: not wanted.
// d_kernel, d_bias (null without bias), d_recurrent and d_recurrent_bias (GRU; null without bias)
// are the sums over the examples of this call alone, written, not added to: threads have arrays of
// their own, added up in a fixed order afterwards.
template <typename T>
struct Backward {
  const T *d_states, *d_last;
  T *d_inputs, *d_h0, *d_kernel, *d_bias, *d_recurrent, *d_recurrent_bias;
};

// The same for every cell; `Cell<T>` is SimpleRnn<T> or Gru<T>.
template <typename Cell, typename T>
struct CellKernels {
  void (*forward)(const Cell& cell, int64_t first, int64_t last);

  // The vector through the chain, from the last step to the first: writes all of `backward`.
  void (*backward)(const Cell& cell, const Backward<T>& backward, int64_t first, int64_t last);

  // The Jacobians of step t, dh_t/dh_{t-1}, one after the other for the examples [first, last):
  // to[b - first][i][j] = d h_t[b, i] / d h_{t-1}[b, j]. `scratch` has jacobian_scratch(cell)
  // elements, the same contents in all calls of a thread: prepared once by `prepare_jacobians`.
  void (*prepare_jacobians)(const Cell& cell, T* scratch);
  void (*jacobians)(const Cell& cell, const T* scratch, int64_t t, int64_t first, int64_t last,
                    T* to);

  // What `backward` writes, apart from d_h0, where the gradients with respect to all states are
  // known: `d_h` (batch, steps, units), whole (those from later steps included). `backward`'s
  // d_states, d_last and d_h0 are not looked at.
  void (*gradients)(const Cell& cell, const Backward<T>& backward, const T* d_h, int64_t first,
                    int64_t last);
};

// Elements of `scratch`: the recurrent kernel's, transposed.
template <typename T>
int64_t jacobian_scratch(const SimpleRnn<T>& cell) {
  return cell.shape.units * cell.shape.units;
}
template <typename T>
int64_t jacobian_scratch(const Gru<T>& cell) {
  return 3 * cell.shape.units * cell.shape.units;
}

template <typename T>
using SimpleRnnKernels = CellKernels<SimpleRnn<T>, T>;
template <typename T>
using GruKernels = CellKernels<Gru<T>, T>;

// Of the best instruction set of this processor (engine/cpu_level.h), T float or double.
template <typename T>
const SimpleRnnKernels<T>& simple_rnn_kernels();
template <typename T>
const GruKernels<T>& gru_kernels();

}  // namespace ringar
