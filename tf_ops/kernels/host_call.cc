// Functions of Python that compiled code calls: one XLA custom call, for code on the CPU.
//
// The opaque string is the function's number. Operands are a token and the arrays, results are a
// token and the arrays, as those of a collective (kernels/xla.cc). Python knows the shapes.

#include <atomic>
#include <cstdlib>
#include <string>

#include "include/ringar.h"
#include "kernels/xla.h"

namespace ringar {
namespace {

std::atomic<ringar_host_function> caller{nullptr};

void call(void* outputs, const void** inputs, const char* opaque, size_t opaque_bytes,
          XlaCustomCallStatus_* status) {
  auto** results = static_cast<void**>(outputs);
  *static_cast<float*>(results[0]) = 0;  // the token: defined, and meaningless
  const int64_t number = std::atoll(std::string(opaque, opaque_bytes).c_str());
  char message[RINGAR_MESSAGE_BYTES] = "";
  if (caller.load()(number, inputs + 1, results + 1, message) != 0) status->message = message;
}

}  // namespace

void register_target_of_host_calls() {
  register_target("ringar_host_call", call);
}

}  // namespace ringar

extern "C" void ringar_on_host_call(ringar_host_function function) {
  ringar::caller.store(function);
}
