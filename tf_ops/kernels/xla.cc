// The collectives inside compiled functions (tf.function(jit_compile=True)): one XLA custom call;
// and how any custom call is registered.
//
// The opaque string is a spec with shapes. Operands are a token and the arrays; results are a token
// and the arrays. XLA may reorder calls that share no data, so ringar/collectives/compiled.py makes
// each call's token an operand of the next.
//
// XLA offers no exported function to report a failure, but its status is a struct with one
// std::optional<std::string>. That is an assumption about a layout: the target
// "ringar_failure" exists so that Python can try it once before any collective is compiled.

#include "kernels/xla.h"

#include <atomic>
#include <string>
#include <string_view>

#include "engine/engine_instance.h"
#include "kernels/compiled_request.h"
#include "kernels/tensorflow.h"

namespace ringar {
namespace {

Status run_compiled(void** outputs, const void** inputs, std::string_view opaque) {
  Spec spec;
  RINGAR_RETURN_IF_ERROR(Spec::parse(opaque, &spec));
  CompiledRequest request(spec, outputs, inputs);
  return run(request);
}

void call(void* outputs, const void** inputs, const char* opaque, size_t opaque_bytes,
          XlaCustomCallStatus_* status) {
  auto** results = static_cast<void**>(outputs);
  *static_cast<float*>(results[0]) = 0;  // the token: defined, and meaningless
  const Status done = run_compiled(results, inputs, std::string_view(opaque, opaque_bytes));
  if (!done.ok()) status->message = done.message();
}

void fail_on_purpose(void*, const void**, const char* opaque, size_t opaque_bytes,
                     XlaCustomCallStatus_* status) {
  status->message = std::string(opaque, opaque_bytes);
}

std::atomic<bool> registered{false};

}  // namespace

void register_target_of_collectives() {
  registered = register_target("ringar_collective", call) &&
               register_target("ringar_failure", fail_on_purpose);
}

bool register_target(const std::string& name, XlaTarget* target) {
  return register_target(name, reinterpret_cast<void*>(target), "Host");
}

// xla::CustomCallTargetRegistry is a C++ class that libtensorflow_cc.so.2 exports.
bool register_target(const std::string& name, void* target, const std::string& platform) {
  constexpr const char* kGlobal = "_ZN3xla24CustomCallTargetRegistry6GlobalEv";
  constexpr const char* kRegister =
      "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcE"
      "SaIcEEEPvS8_";
  auto* global = reinterpret_cast<void* (*)()>(find_in_tensorflow(kGlobal));
  auto* add = reinterpret_cast<void (*)(void*, const std::string&, void*, const std::string&)>(
      find_in_tensorflow(kRegister));
  if (!global || !add) return false;
  add(global(), name, target, platform);
  return true;
}

}  // namespace ringar

extern "C" int ringar_has_xla_target(void) {
  return ringar::registered;
}
