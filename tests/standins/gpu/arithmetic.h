// Types of elements, and what reductions make of them.

#pragma once

#include <cstddef>
#include <vector>

#include "standin.h"

namespace standin {

// 0: no type that the library knows.
size_t size_of(ringar::nccl::DataType type);
const char* name_of(ringar::nccl::DataType type);

// An operation, as it was when the collective was called.
struct Reduction {
  ringar::nccl::RedOp op = ringar::nccl::kSum;  // one of NCCL's own
  bool has_factor = false;
  unsigned char factor[8] = {};  // one element: what each input is multiplied with
};

// Reduces in the order of `inputs`, which are those of the ranks. `out` may be one of them. 16-bit
// floats are added in float32 and rounded once, to nearest even.
void reduce(const std::vector<const std::byte*>& inputs, std::byte* out, size_t count,
            ringar::nccl::DataType type, const Reduction& reduction);

}  // namespace standin
