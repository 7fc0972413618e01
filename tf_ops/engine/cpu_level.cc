#include "engine/cpu_level.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <string>

namespace ringar {
namespace {

CpuLevel best_level() {
  const char* name = std::getenv("RINGAR_CPU_LEVEL");
  const std::string limit = name ? name : "";
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx512 && limit != "avx2" && limit != "baseline") return CpuLevel::kAvx512;
  if (avx2 && limit != "baseline") return CpuLevel::kAvx2;
#elif defined(__aarch64__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0 && limit != "baseline") return CpuLevel::kNeon;
#endif
  return CpuLevel::kBaseline;
}

}  // namespace

CpuLevel cpu_level() {
  static const CpuLevel chosen = best_level();
  return chosen;
}

const char* cpu_level_name() {
  switch (cpu_level()) {
    case CpuLevel::kAvx512:
      return "avx512";
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kNeon:
      return "neon";
    case CpuLevel::kBaseline:
      break;
  }
  return "baseline";
}

}  // namespace ringar
