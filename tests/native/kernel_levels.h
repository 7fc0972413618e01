// What the tests of kernels share that are compiled once per instruction set: the sets that this
// machine can run, and numbers that every set sums up exactly.

#pragma once

#include <cstdint>
#include <vector>

namespace ringar::test {

#if defined(__x86_64__)
inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

template <typename Kernels>
struct KernelLevel {
  const char* name;
  const Kernels* kernels;
};

// Those of `Levels` that this machine can run.
template <typename Kernels, typename Levels>
std::vector<KernelLevel<Kernels>> kernel_levels() {
  std::vector<KernelLevel<Kernels>> list{{"baseline", &Levels::baseline}};
#if defined(__x86_64__)
  if (has_avx2()) list.push_back({"avx2", &Levels::avx2});
  if (has_avx512()) list.push_back({"avx512", &Levels::avx512});
#endif
  return list;
}

// Small whole numbers: every order of adding them is exact.
template <typename T>
std::vector<T> exact_numbers(int64_t count, int seed) {
  std::vector<T> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(static_cast<T>((i * 7 + seed * 5) % 13 - 6));
  return all;
}

constexpr double kUntouched = -77;

}  // namespace ringar::test
