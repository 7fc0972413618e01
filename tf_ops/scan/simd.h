// Vectors of a few widths, by the compilers' own vector types, and the loads and stores that they
// lack.
//
// Included by files that are compiled once per instruction set: everything is in an unnamed
// namespace, so that the linker merges nothing of it (see engine/reduce_kernels.inc).

#pragma once

#include <cstdint>
#include <cstring>

namespace ringar {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// `kLanes` elements of T: a power of two, 2 or more.
template <typename T, int kLanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <typename T>
struct VectorOf<T, 1> {
  typedef T type;
};
template <typename T, int kLanes>
using Vector = typename VectorOf<T, kLanes>::type;

// The widest vector of this instruction set.
template <typename T>
constexpr int kWidest = kVectorBytes / static_cast<int>(sizeof(T));

template <typename V, typename T>
inline V load(const T* from) {
  V v;
  memcpy(&v, from, sizeof v);
  return v;
}
template <typename V, typename T>
inline void store(T* to, V v) {
  memcpy(to, &v, sizeof v);
}

// The sum of the lanes.
template <typename T, int kLanes>
inline T total(Vector<T, kLanes> v) {
  if constexpr (kLanes == 1) {
    return v;
  } else {
    Vector<T, kLanes / 2> low, high;
    memcpy(&low, &v, sizeof low);
    memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
    return total<T, kLanes / 2>(low + high);
  }
}

}  // namespace
}  // namespace ringar
