// The collectives inside compiled functions on a GPU: the CUDA form of the custom call in xla.cc.
//
// XLA calls it on a thread of the host, with the stream in which it runs the function, and buffers
// of the GPU: those of the operands, then those of the results; a token first among each.
//
// The call returns when the collective has ended. Otherwise XLA would enqueue the next kernels, and
// nothing could tell it of a later failure: an optimizer would apply the failed outputs. The wait
// costs the time in which the next kernels are launched. A thread of the host may wait here since
// XLA does not capture the call in a command buffer (a CUDA graph): it captures custom calls whose
// traits allow it, and ours have none (docs/architecture/tensorflow.md).

#include <string_view>

#include "engine/engine_instance.h"
#include "kernels/compiled_request.h"
#include "kernels/xla.h"

namespace ringar {
namespace {

Status run_on_gpu(const Spec& spec, void* const* results, const void* const* operands,
                  void* stream) {
  CompiledRequest request(spec, results, operands);
  const auto running = engine();
  if (!running) return run(request);
  OnGpu on_gpu{0, stream, nullptr};
  const Status status = running->gpu().device_of(stream, &on_gpu.device);
  if (!status.ok()) request.refusal = status.message();  // for all ranks
  request.gpu = on_gpu;
  RINGAR_RETURN_IF_ERROR(running->run(request));
  return running->wait_on_gpu(*request.gpu);
}

Status run_collective(const XlaCall& call) {
  Spec spec;
  RINGAR_RETURN_IF_ERROR(Spec::parse(call.text(), &spec));
  return run_on_gpu(spec, call.results(spec.shapes.size() + 1), call.operands(), call.stream());
}

Status run_older(void* stream, void** buffers, std::string_view text) {
  Spec spec;
  RINGAR_RETURN_IF_ERROR(Spec::parse(text, &spec));
  return run_on_gpu(spec, buffers + spec.shapes.size() + 1, const_cast<const void**>(buffers),
                    stream);
}

void fail_older(void*, void**, const char* text, size_t bytes, XlaCustomCallStatus_* status) {
  status->message = std::string(text, bytes);
}

Status fail_on_purpose(const XlaCall& call) {
  return {RINGAR_DEVICE, std::string(call.text())};
}

}  // namespace

void register_target_on_gpus() {
  register_target("ringar_collective", reinterpret_cast<void*>(ringar_xla_collective_on_gpu),
                  ringar_xla_typed_collective_on_gpu, "CUDA");
  register_target("ringar_failure", reinterpret_cast<void*>(fail_older),
                  xla_forms::typed<fail_on_purpose>, "CUDA");
}

}  // namespace ringar

extern "C" void ringar_xla_collective_on_gpu(void* stream, void** buffers, const char* text,
                                             size_t bytes, XlaCustomCallStatus_* status) {
  const ringar::Status done = ringar::run_older(stream, buffers, std::string_view(text, bytes));
  if (!done.ok()) status->message = done.message();
}

extern "C" ringar::ffi::Error* ringar_xla_typed_collective_on_gpu(ringar::ffi::CallFrame* frame) {
  return ringar::xla_forms::run_typed(ringar::run_collective, frame,
                                      ringar::xla_forms::Stream::kOfGpu);
}
