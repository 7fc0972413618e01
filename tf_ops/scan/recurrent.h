// SimpleRNN, GRU and LSTM, forward and backward: whole sequences in one call, a few examples at a
// time.
//
// Arrays are row-major and batch-major, as Keras has them: (batch, steps, units). `h0` is the state
// before the first step, h[:, t] the one after step t. Every function works on the examples
// [first, last) of the batch, all steps, and is called for different examples by different threads.
//
// A masked step (mask[b, t] == 0) hands the state on: h_t = h_{t-1} (and c_t = c_{t-1}), whose
// Jacobian is the identity, and the gradient of what it read is 0. Without a mask, `mask` is null.

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
  T* residuals;  // (batch, steps, 4 units): z, r, c, i_c of every step, for the way back
};

// Keras' LSTM; U of (units, 4 units), gates in the order i (input), f (forget), g (candidate), o
// (output):
//   [z_i, z_f, z_g, z_o] = x_t W + b + h_{t-1} U
//   i, f, o = sigma(z_i), sigma(z_f), sigma(z_o), g = activation(z_g)
//   c_t = f c_{t-1} + i g
//   h_t = o activation(c_t)
// Its state is both h and c. `h0`, and d_h0 and d_last on the way back, have rows of 2 units: h,
// then c.
template <typename T>
struct Lstm {
  RecurrentShape shape;
  Activation activation, recurrent_activation;
  Projection<T> z;
  const T *h0, *recurrent;
  const uint8_t* mask;
  T* h;
  T* residuals;  // (batch, steps, 5 units): i, f, g, o, c_t of every step
};

// What the way back gets and gives. `d_states`, gradients with respect to each h_t from outside of
// the chain, may be null (none but the last); `d_last` (batch, units), one more with respect to the
// last state, may be null, too. d_inputs, of the shape of the inputs, may be null: not wanted.
// `sums`, of sizes().sums elements, zeros at first, is added to: the gradients of the weights, as
// the tiles of the products leave them. Threads have sums of their own, and so have stretches of
// the steps that are called one after the other the same.
template <typename T>
struct Backward {
  const T *d_states, *d_last;
  T *d_inputs, *d_h0, *sums;
};

// d_bias is null without bias, d_recurrent_bias in all cells but a GRU with bias.
template <typename T>
struct WeightGradients {
  T *d_kernel, *d_recurrent, *d_bias, *d_recurrent_bias;
};

// The elements of a cell's arrays of one instruction set: both kernels in the order in which the
// products of `forward` and `backward` read them, and the sums of `backward`.
struct PackedSizes {
  int64_t forth, back, sums;
};

// The same for every cell; `Cell` is SimpleRnn<T>, Gru<T> or Lstm<T>. Kernels are packed once for
// any number of calls: several threads, or several stretches of steps.
template <typename Cell, typename T>
struct CellKernels {
  PackedSizes (*sizes)(const RecurrentShape& shape);

  // Writes sizes().forth elements.
  void (*pack)(const RecurrentShape& shape, const T* kernel, const T* recurrent, T* to);
  void (*forward)(const Cell& cell, const T* packed, int64_t first, int64_t last);

  // The same, for the way back, sizes().back elements. `kernel` may be null: d_inputs then, too.
  void (*pack_back)(const RecurrentShape& shape, const T* kernel, const T* recurrent, T* to);
  // The vector through the chain, from the last step to the first: writes all of `backward`, but
  // adds to its sums.
  void (*backward)(const Cell& cell, const T* packed, const Backward<T>& backward, int64_t first,
                   int64_t last);
  void (*write_sums)(const RecurrentShape& shape, const T* sums, const WeightGradients<T>& to);
};

// Those of a cell whose way back may be a scan, too. An LSTM's is not: its Jacobians are those of
// (h, c), 2 units x 2 units, and a product of two costs eight times that of a GRU's.
template <typename Cell, typename T>
struct ScannedKernels : CellKernels<Cell, T> {
  // The Jacobians of step t, dh_t/dh_{t-1}, one after the other for the examples [first, last):
  // to[b - first][i][j] = d h_t[b, i] / d h_{t-1}[b, j]. `scratch` has jacobian_scratch(cell)
  // elements, the same contents in all calls of a thread: prepared once by `prepare_jacobians`.
  void (*prepare_jacobians)(const Cell& cell, T* scratch);
  void (*jacobians)(const Cell& cell, const T* scratch, int64_t t, int64_t first, int64_t last,
                    T* to);

  // What `backward` writes, apart from d_h0, where the gradients with respect to all states are
  // known: `d_h` (batch, steps, units), whole (those from later steps included). `backward`'s
  // d_states, d_last and d_h0 are not looked at.
  void (*gradients)(const Cell& cell, const T* packed, const Backward<T>& backward, const T* d_h,
                    int64_t first, int64_t last);
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
using SimpleRnnKernels = ScannedKernels<SimpleRnn<T>, T>;
template <typename T>
using GruKernels = ScannedKernels<Gru<T>, T>;
template <typename T>
using LstmKernels = CellKernels<Lstm<T>, T>;

// Of the best instruction set of this processor (engine/cpu_level.h), T float or double.
template <typename T>
const SimpleRnnKernels<T>& simple_rnn_kernels();
template <typename T>
const GruKernels<T>& gru_kernels();
template <typename T>
const LstmKernels<T>& lstm_kernels();

}  // namespace ringar
