// What collectives must give, computed serially and slowly, by other means than the library's.

#pragma once

#include <vector>

#include "requests.h"

namespace ringar::test {

// The terms combined in their order: float16 and bfloat16 in float32, rounded once.
Bytes reduced(DataType dtype, ReduceOp op, const std::vector<Bytes>& terms, double prescale,
              double postscale);

// Equal bits; where a NaN is expected, any NaN will do, since IEEE 754 leaves its payload open.
// Returns the first element that differs, or -1.
int64_t first_difference(DataType dtype, const Bytes& received, const Bytes& expected);

double from_half(uint16_t bits);
uint16_t to_half(float value);
float from_bfloat(uint16_t bits);
uint16_t to_bfloat(float value);

}  // namespace ringar::test
