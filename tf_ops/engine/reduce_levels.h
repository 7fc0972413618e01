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
  size_t elements;
};

void reduce_baseline(DataType dtype, ReduceOp op, const KernelCall& call);
void reduce_avx2(DataType dtype, ReduceOp op, const KernelCall& call);
void reduce_avx512(DataType dtype, ReduceOp op, const KernelCall& call);

}  // namespace ringar
