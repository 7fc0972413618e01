#include "sparse/sparse.h"

#include "engine/cpu_level.h"
#include "sparse/sparse_levels.h"

namespace ringar {

template <typename T>
const SparseKernels<T>& sparse_kernels() {
#if defined(__x86_64__)
  if (cpu_level() == CpuLevel::kAvx512) return SparseLevels<T>::avx512;
  if (cpu_level() == CpuLevel::kAvx2) return SparseLevels<T>::avx2;
#endif
  return SparseLevels<T>::baseline;
}

template const SparseKernels<float>& sparse_kernels();
template const SparseKernels<double>& sparse_kernels();

}  // namespace ringar
