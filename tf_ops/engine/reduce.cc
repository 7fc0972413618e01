#include "engine/reduce.h"

#include <cstdlib>
#include <cstring>
#include <string>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

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
#endif
};

struct Level {
  const char* name;
  void (*reduce)(DataType, ReduceOp, const KernelCall&);
  void (*convert)(const ConvertCall&);
};

Level best_level() {
  const char* wanted = std::getenv("RINGAR_CPU_LEVEL");
  const std::string limit = wanted ? wanted : "avx512";
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx512 && limit == "avx512") return {"avx512", reduce_avx512, convert_avx512};
  if (avx2 && limit != "baseline") return {"avx2", reduce_avx2, convert_avx2};
#endif
  return {"baseline", reduce_baseline, convert_baseline};
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

const char* cpu_level() {
  return level().name;
}

}  // namespace ringar
