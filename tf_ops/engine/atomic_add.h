// Adding to memory that other threads and processes add to at the same time, without losing any
// summand. Elements of 4 and 8 bytes.

#pragma once

#include <cstddef>

#include "engine/types.h"

namespace ringar {

constexpr bool has_atomic_add(DataType t) {
  return t == DataType::kFloat32 || t == DataType::kFloat64 || t == DataType::kInt32 ||
         t == DataType::kInt64 || t == DataType::kUint32 || t == DataType::kUint64;
}

// Each element on its own; integers wrap around.
void atomic_add(DataType dtype, std::byte* to, const std::byte* summands, size_t elements);
// One element; `summand` becomes the previous value.
void atomic_fetch_add(DataType dtype, std::byte* to, std::byte* summand);

}  // namespace ringar
