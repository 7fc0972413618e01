#include "engine/reduce.h"

#include <cstdint>

#include "engine/cpu_level.h"
#include "engine/default_rounding.h"
#include "engine/reduce_levels.h"

namespace ringar {
namespace {

struct ReduceKernels {
  void (*reduce)(DataType, ReduceOp, const KernelCall&);
  void (*convert)(const ConvertCall&);
};

ReduceKernels best_kernels() {
#if defined(__x86_64__)
  if (cpu_level() == CpuLevel::kAvx512) return {reduce_avx512, convert_avx512};
  if (cpu_level() == CpuLevel::kAvx2) return {reduce_avx2, convert_avx2};
#elif defined(__aarch64__)
  if (cpu_level() == CpuLevel::kNeon) return {reduce_neon, convert_neon};
#endif
  return {reduce_baseline, convert_baseline};
}

const ReduceKernels& kernels() {
  static const ReduceKernels chosen = best_kernels();
  return chosen;
}

}  // namespace

void reduce(const Reduction& reduction, const std::byte* const* sources, int count, std::byte* to,
            size_t elements) {
  const DefaultRounding rounding;
  kernels().reduce(reduction.dtype, reduction.op,
                   {sources, count, reduction.prescale, reduction.postscale, to, elements});
}

void convert(DataType from_type, DataType to_type, const std::byte* from, std::byte* to,
             size_t elements) {
  const DefaultRounding rounding;
  kernels().convert({from_type, to_type, from, to, elements});
}

}  // namespace ringar
