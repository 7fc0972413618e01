// The collectives inside compiled functions on a GPU: the CUDA form of the custom call in xla.cc.
//
// XLA calls it on a thread of the host, with the stream in which it runs the function, and buffers
// of the GPU: those of the operands, then those of the results; a token first among each.
//
// The call returns when the collective has ended. Otherwise XLA would enqueue the next kernels, and
// nothing could tell it of a later failure: an optimizer would apply the failed outputs. The wait
// costs the time in which the next kernels are launched.

#include <string_view>

#include "engine/engine_instance.h"
#include "kernels/compiled_request.h"
#include "kernels/xla.h"

namespace ringar {
namespace {

Status run_compiled_on_gpu(void* stream, void** buffers, std::string_view opaque) {
  Spec spec;
  RINGAR_RETURN_IF_ERROR(Spec::parse(opaque, &spec));
  const size_t operands = spec.shapes.size() + 1;
  CompiledRequest request(spec, buffers + operands, const_cast<const void**>(buffers));
  const auto running = engine();
  if (!running) return run(request);
  OnGpu on_gpu{0, stream, nullptr};
  const Status status = running->gpu().device_of(stream, &on_gpu.device);
  if (!status.ok()) request.refusal = status.message();  // for all ranks
  request.gpu = on_gpu;
  RINGAR_RETURN_IF_ERROR(running->run(request));
  return running->wait_on_gpu(*request.gpu);
}

void fail_on_purpose(void*, void**, const char* opaque, size_t opaque_bytes,
                     XlaCustomCallStatus_* status) {
  status->message = std::string(opaque, opaque_bytes);
}

}  // namespace

void register_target_on_gpus() {
  register_target("ringar_collective", reinterpret_cast<void*>(ringar_xla_collective_on_gpu),
                  "CUDA");
  register_target("ringar_failure", reinterpret_cast<void*>(fail_on_purpose), "CUDA");
}

}  // namespace ringar

extern "C" void ringar_xla_collective_on_gpu(void* stream, void** buffers, const char* opaque,
                                             size_t opaque_bytes, XlaCustomCallStatus_* status) {
  const ringar::Status done =
      ringar::run_compiled_on_gpu(stream, buffers, std::string_view(opaque, opaque_bytes));
  if (!done.ok()) status->message = done.message();
}
