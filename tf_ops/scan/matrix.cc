#include "scan/matrix.h"

#include "engine/cpu_level.h"
#include "scan/matrix_levels.h"

namespace ringar {

template <typename T>
const MatrixKernels<T>& matrix_kernels() {
#if defined(__x86_64__)
  if (cpu_level() == CpuLevel::kAvx512) return MatrixLevels<T>::avx512;
  if (cpu_level() == CpuLevel::kAvx2) return MatrixLevels<T>::avx2;
#endif
  return MatrixLevels<T>::baseline;
}

template const MatrixKernels<float>& matrix_kernels();
template const MatrixKernels<double>& matrix_kernels();

}  // namespace ringar
