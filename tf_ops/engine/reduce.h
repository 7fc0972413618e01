// Elementwise reduction of several arrays into one, and conversion: the only arithmetic in the
// library.
//
// float16 and bfloat16 are added in float32 and rounded once. Terms are taken in the order of
// `sources`, one by one, without fused multiply-add, so that every instruction set and every rank
// computes the same bits; NaN propagates through min and max as in NumPy.

#pragma once

#include <cstddef>

#include "engine/types.h"

namespace ringar {

struct Reduction {
  DataType dtype;
  ReduceOp op;
  double prescale = 1.0;   // each term is multiplied by it,
  double postscale = 1.0;  // and the result by this one
};

// Writes `elements` results to `to`, which may be one of the sources.
void reduce(const Reduction& reduction, const std::byte* const* sources, int count, std::byte* to,
            size_t elements);

// Converts between float32 and float16 or bfloat16, rounding to nearest, ties to even.
void convert(DataType from_type, DataType to_type, const std::byte* from, std::byte* to,
             size_t elements);

}  // namespace ringar
