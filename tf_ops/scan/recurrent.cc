#include "scan/recurrent.h"

#include "engine/cpu_level.h"
#include "scan/recurrent_levels.h"

namespace ringar {
namespace {

const RecurrentLevel& level() {
#if defined(__x86_64__)
  if (cpu_level() == CpuLevel::kAvx512) return recurrent_avx512;
  if (cpu_level() == CpuLevel::kAvx2) return recurrent_avx2;
#endif
  return recurrent_baseline;
}

}  // namespace

template <>
const SimpleRnnKernels<float>& simple_rnn_kernels<float>() {
  return level().simple_rnn_float;
}
template <>
const SimpleRnnKernels<double>& simple_rnn_kernels<double>() {
  return level().simple_rnn_double;
}
template <>
const GruKernels<float>& gru_kernels<float>() {
  return level().gru_float;
}
template <>
const GruKernels<double>& gru_kernels<double>() {
  return level().gru_double;
}
template <>
const LstmKernels<float>& lstm_kernels<float>() {
  return level().lstm_float;
}
template <>
const LstmKernels<double>& lstm_kernels<double>() {
  return level().lstm_double;
}

}  // namespace ringar
