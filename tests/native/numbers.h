// The numbers that ranks bring, and how arrays are compared: quickly, for much else is slow under
// sanitizers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/types.h"

namespace ringar::test {

using Bytes = std::vector<std::byte>;

// Bytes that depend on `seed` alone. Floating dtypes: mostly numbers around 1, `special` of 256 of
// them anything that fits in the bits, NaN and infinities included.
Bytes random_bytes(DataType dtype, size_t elements, uint64_t seed, int special = 8);

// Floating dtypes: 0.5 and 1, of either sign: sums and products of a few are exact.
Bytes small_numbers(DataType dtype, size_t elements, uint64_t seed);

Bytes copies_of(float value, size_t elements);
// All elements of `floats` are `value`.
void expect_copies_of(float value, const Bytes& floats);

// One call, where == of two vectors of std::byte takes them one by one.
inline bool same_bytes(const void* a, const void* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}
inline bool same_bytes(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && same_bytes(a.data(), b.data(), a.size());
}

}  // namespace ringar::test
