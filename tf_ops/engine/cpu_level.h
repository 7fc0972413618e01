// The instruction set whose loops this processor uses; they are compiled once for each.

#pragma once

namespace ringar {

enum class CpuLevel { kBaseline, kAvx2, kAvx512, kNeon };

// The best that the processor has; RINGAR_CPU_LEVEL in the environment lowers it.
CpuLevel cpu_level();

// "avx512", "avx2", "neon" or "baseline".
const char* cpu_level_name();

}  // namespace ringar
