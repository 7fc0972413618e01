// The kernels of SimpleRNN, GRU and LSTM, once per instruction set. Plain data only: see
// recurrent_kernels.inc.

#pragma once

#include "scan/recurrent.h"

namespace ringar {

struct RecurrentLevel {
  SimpleRnnKernels<float> simple_rnn_float;
  SimpleRnnKernels<double> simple_rnn_double;
  GruKernels<float> gru_float;
  GruKernels<double> gru_double;
  LstmKernels<float> lstm_float;
  LstmKernels<double> lstm_double;
};

extern const RecurrentLevel recurrent_baseline;
extern const RecurrentLevel recurrent_avx2;
extern const RecurrentLevel recurrent_avx512;

}  // namespace ringar
