// The differences between the recurrent cells of recurrent.cc: their arrays, their kernels, and how
// a cell is made of a computation's inputs and outputs.

#pragma once

#include <vector>

#include "kernels/recurrent_inputs.h"
#include "scan/recurrent.h"

namespace ringar {

inline constexpr CellArrays kSimpleRnn{"RingarSimpleRnn", 1, 0, 1, false, true};
inline constexpr CellArrays kGru{"RingarGru", 3, 4, 1, true, true};
inline constexpr CellArrays kLstm{"RingarLstm", 4, 5, 2, false, false};

inline Activation activation_of(const Options& options, const char* name) {
  return static_cast<Activation>(options.number(name));
}

template <typename T>
Projection<T> projection(const Inputs& in) {
  return {in.at<T>(kInputs), in.at<T>(kKernel), in.at<T>(kBias)};
}

// `arrays` is h and the residuals, if any; the way back needs no recurrent bias, nor do Jacobians a
// projection.
template <typename T>
struct SimpleRnnTraits {
  using Cell = SimpleRnn<T>;
  static constexpr CellArrays kArrays = kSimpleRnn;
  static const SimpleRnnKernels<T>& kernels() { return simple_rnn_kernels<T>(); }

  static Cell cell(const Options& options, const RecurrentShape& shape, const Inputs& in,
                   const Projection<T>& projection, const T*, const std::vector<T*>& arrays) {
    return {shape,
            activation_of(options, "activation"),
            projection,
            in.at<T>(kInitial),
            in.at<T>(kRecurrent),
            in.at<uint8_t>(kMask),
            arrays[0]};
  }
};

template <typename T>
struct GruTraits {
  using Cell = Gru<T>;
  static constexpr CellArrays kArrays = kGru;
  static const GruKernels<T>& kernels() { return gru_kernels<T>(); }

  static Cell cell(const Options& options, const RecurrentShape& shape, const Inputs& in,
                   const Projection<T>& projection, const T* recurrent_bias,
                   const std::vector<T*>& arrays) {
    return {shape,
            activation_of(options, "activation"),
            activation_of(options, "recurrent_activation"),
            projection,
            in.at<T>(kInitial),
            in.at<T>(kRecurrent),
            recurrent_bias,
            in.at<uint8_t>(kMask),
            arrays[0],
            arrays[1]};
  }
};

template <typename T>
struct LstmTraits {
  using Cell = Lstm<T>;
  static constexpr CellArrays kArrays = kLstm;
  static const LstmKernels<T>& kernels() { return lstm_kernels<T>(); }

  static Cell cell(const Options& options, const RecurrentShape& shape, const Inputs& in,
                   const Projection<T>& projection, const T*, const std::vector<T*>& arrays) {
    return {shape,
            activation_of(options, "activation"),
            activation_of(options, "recurrent_activation"),
            projection,
            in.at<T>(kInitial),
            in.at<T>(kRecurrent),
            in.at<uint8_t>(kMask),
            arrays[0],
            arrays[1]};
  }
};

}  // namespace ringar
