// The same reduction, once per instruction set. Plain data only: see reduce_kernels.inc.

#pragma once

#include <cstddef>

#include "engine/types.h"

namespace ringar {

struct KernelCall {
  const std::byte* const* sources;
  int count;
  double prescale, postscale;
  std::byte* to;
  std::byte* copy_to;  // or null
  size_t elements;
  bool stream;  // write `to` past the caches
};

void reduce_baseline(DataType dtype, ReduceOp op, const KernelCall& call);
void reduce_avx2(DataType dtype, ReduceOp op, const KernelCall& call);
void reduce_avx512(DataType dtype, ReduceOp op, const KernelCall& call);

// memcpy whose target does not go through the caches.
void stream_baseline(std::byte* to, const std::byte* from, size_t bytes);
void stream_avx2(std::byte* to, const std::byte* from, size_t bytes);
void stream_avx512(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace ringar
