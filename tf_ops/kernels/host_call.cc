// Functions of Python that compiled code calls: one XLA custom call, for code on the CPU.
//
// The call's text is the function's number. Operands are a token and the arrays, results are a
// token and the arrays, as those of a collective (kernels/xla.cc). Python knows the shapes.

#include <atomic>
#include <cstdlib>
#include <string>

#include "include/ringar.h"
#include "kernels/xla.h"

namespace ringar {
namespace {

std::atomic<ringar_host_function> caller{nullptr};

Status call(const XlaCall& call) {
  // Its results are two at least: the token and an array.
  auto** const results = const_cast<void**>(call.results(2));
  *static_cast<float*>(results[0]) = 0;  // the token: defined, and meaningless
  const int64_t number = std::atoll(std::string(call.text()).c_str());
  char message[RINGAR_MESSAGE_BYTES] = "";
  auto** const operands = const_cast<const void**>(call.operands());
  if (caller.load()(number, operands + 1, results + 1, message) == 0) return {};
  return {RINGAR_DEVICE, message};
}

}  // namespace

void register_target_of_host_calls() {
  register_target<call>("ringar_host_call");
}

}  // namespace ringar

extern "C" void ringar_on_host_call(ringar_host_function function) {
  ringar::caller.store(function);
}
