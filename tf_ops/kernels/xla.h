// Custom calls of compiled functions: how XLA finds them, and how they fail.
//
// A target is registered in two forms. XLA's typed FFI is the one that stays: versioned structs,
// and a function that makes an error. Python calls it where TensorFlow exports the interface, from
// version 0.1 on (TensorFlow 2.18 to 2.21). The older form, API_VERSION_STATUS_RETURNING_UNIFIED,
// is for TensorFlow before that; XLA has announced the end of forms before the typed one
// (docs/architecture/tensorflow.md).

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "include/ringar.h"
#include "kernels/xla_ffi_abi.h"

// What XLA hands to a custom call of the older form: an assumption about a layout, tried once
// before it is relied on (ringar/collectives/compiled.py). tests/test_xla_abi.py compares it with
// XLA's headers.
struct XlaCustomCallStatus_ {
  std::optional<std::string> message;
};

namespace ringar {

class XlaCall {
 public:
  XlaCall(void* results, const void* const* operands, std::string_view text, void* stream = nullptr)
      : results_(results), operands_(operands), text_(text), stream_(stream) {}
  // Of the typed FFI; it must outlive the call.
  XlaCall(const std::vector<void*>& results, const std::vector<const void*>& operands,
          std::string_view text, void* stream)
      : XlaCall(const_cast<void**>(results.data()), operands.data(), text, stream) {
    has_array_ = true;
  }

  const void* const* operands() const { return operands_; }
  // The older form passes a single result itself, and several as an array.
  void* const* results(size_t count) const {
    return count == 1 && !has_array_ ? &results_ : static_cast<void* const*>(results_);
  }
  std::string_view text() const { return text_; }
  void* stream() const { return stream_; }  // XLA's, of a GPU; else null

 private:
  void* results_;
  const void* const* operands_;
  std::string_view text_;
  void* stream_;
  bool has_array_ = false;
};

using XlaTarget = Status(const XlaCall&);

// A target in XLA's two forms.
namespace xla_forms {

using Older = void(void* outputs, const void** inputs, const char* text, size_t bytes,
                   XlaCustomCallStatus_* status);

template <XlaTarget* target>
void older(void* outputs, const void** inputs, const char* text, size_t bytes,
           XlaCustomCallStatus_* status) {
  const Status done = target(XlaCall(outputs, inputs, std::string_view(text, bytes)));
  if (!done.ok()) status->message = done.message();
}

enum class Stream { kNone, kOfGpu };

ffi::Error* run_typed(XlaTarget* target, ffi::CallFrame* frame, Stream stream = Stream::kNone);

template <XlaTarget* target>
ffi::Error* typed(ffi::CallFrame* frame) {
  return run_typed(target, frame);
}

}  // namespace xla_forms

// Registers a target with XLA, in the forms that this process has. `platform`: "Host" or "CUDA".
void register_target(const std::string& name, void* older, ffi::Handler* typed,
                     const std::string& platform);

template <XlaTarget* target>
void register_target(const std::string& name) {
  register_target(name, reinterpret_cast<void*>(xla_forms::older<target>), xla_forms::typed<target>,
                  "Host");
}

void register_target_of_collectives();
void register_target_on_gpus();
void register_target_of_host_calls();

}  // namespace ringar

// As ringar_has_xla_target, which is about the older form.
extern "C" RINGAR_EXPORT int ringar_has_typed_xla_target(void);

// The target of collectives on the platform "CUDA" in both forms, for tests to call.
extern "C" RINGAR_EXPORT void ringar_xla_collective_on_gpu(void* stream, void** buffers,
                                                           const char* text, size_t bytes,
                                                           XlaCustomCallStatus_* status);
extern "C" RINGAR_EXPORT ringar::ffi::Error* ringar_xla_typed_collective_on_gpu(
    ringar::ffi::CallFrame* frame);
