// Custom calls of compiled functions: how XLA finds them, and how they fail.

#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "include/ringar.h"

// What XLA hands to a custom call: an assumption about a layout, tried once before it is relied on
// (ringar/collectives/compiled.py). tests/test_xla_abi.py compares it with XLA's headers.
struct XlaCustomCallStatus_ {
  std::optional<std::string> message;
};

namespace ringar {

// `outputs` points to an array of pointers if there are several results, else to the result.
using XlaTarget = void(void* outputs, const void** inputs, const char* opaque, size_t opaque_bytes,
                       XlaCustomCallStatus_* status);

// For functions on the CPU, and on a platform of XLA's. Whether XLA was found in this process.
bool register_target(const std::string& name, XlaTarget* target);
bool register_target(const std::string& name, void* target, const std::string& platform);

}  // namespace ringar

// The target of collectives on the platform "CUDA", for tests to call.
extern "C" RINGAR_EXPORT void ringar_xla_collective_on_gpu(void* stream, void** buffers,
                                                           const char* opaque, size_t opaque_bytes,
                                                           XlaCustomCallStatus_* status);
