#include "engine/reduce.h"

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "engine/cpu_level.h"
#include "engine/reduce_levels.h"

namespace ringar {
namespace {

// TensorFlow lets its threads flush denormals to zero; the engine's own thread does not. A sum must
// not depend on the thread that computes it.
class DefaultRounding {
 public:
#if defined(__x86_64__)
  DefaultRounding() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultRounding() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  DefaultRounding() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) set(0);
  }
  ~DefaultRounding() {
    if (saved_ != 0) set(saved_);
  }

 private:
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }

  uint64_t saved_;
#endif
};

struct Level {
  void (*reduce)(DataType, ReduceOp, const KernelCall&);
  void (*convert)(const ConvertCall&);
};

Level best_level() {
#if defined(__x86_64__)
  if (cpu_level() == CpuLevel::kAvx512) return {reduce_avx512, convert_avx512};
  if (cpu_level() == CpuLevel::kAvx2) return {reduce_avx2, convert_avx2};
#elif defined(__aarch64__)
  if (cpu_level() == CpuLevel::kNeon) return {reduce_neon, convert_neon};
#endif
  return {reduce_baseline, convert_baseline};
}

const Level& level() {
  static const Level chosen = best_level();
  return chosen;
}

}  // namespace

void reduce(const Reduction& reduction, const std::byte* const* sources, int count, std::byte* to,
            size_t elements) {
  const DefaultRounding rounding;
  level().reduce(reduction.dtype, reduction.op,
                 {sources, count, reduction.prescale, reduction.postscale, to, elements});
}

void convert(DataType from_type, DataType to_type, const std::byte* from, std::byte* to,
             size_t elements) {
  const DefaultRounding rounding;
  level().convert({from_type, to_type, from, to, elements});
}

}  // namespace ringar
