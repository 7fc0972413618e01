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

// Elements from one dtype to another; of the two one is float32, the other float16 or bfloat16.
struct ConvertCall {
  DataType from_type, to_type;
  const std::byte* from;
  std::byte* to;
  size_t elements;
};

void reduce_baseline(DataType dtype, ReduceOp op, const KernelCall& call);
void convert_baseline(const ConvertCall& call);
void reduce_avx2(DataType dtype, ReduceOp op, const KernelCall& call);
void convert_avx2(const ConvertCall& call);
void reduce_avx512(DataType dtype, ReduceOp op, const KernelCall& call);
void convert_avx512(const ConvertCall& call);
void reduce_neon(DataType dtype, ReduceOp op, const KernelCall& call);
void convert_neon(const ConvertCall& call);

}  // namespace ringar
