#include "links/cuda.h"

#include <mutex>

#include "links/library.h"

namespace ringar {
namespace {

Status open_library(const std::string& file, Cuda* driver) {
  Library library("the driver of an NVIDIA GPU",
                  "Install NVIDIA's driver, or name its library: RINGAR_CUDA_LIBRARY.");
  RINGAR_RETURN_IF_ERROR(library.open(file.empty() ? "libcuda.so.1" : file));
#define RINGAR_FIND(name, exported, arguments) \
  driver->name = reinterpret_cast<decltype(driver->name)>(library.find(#exported));
  RINGAR_CUDA_FUNCTIONS(RINGAR_FIND)
#undef RINGAR_FIND
  RINGAR_RETURN_IF_ERROR(library.complete());
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver, Init, 0));
  int version = 0;
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver, DriverGetVersion, &version));
  if (version >= cuda::kOldestVersion) return {};
  return {RINGAR_UNSUPPORTED, "expected a driver for CUDA 12 or later, received one for CUDA " +
                                  std::to_string(version / 1000) + "." +
                                  std::to_string(version / 10 % 100) + ". Update NVIDIA's driver."};
}

}  // namespace

Status Cuda::check(const char* call, cuda::Result result) const {
  if (result == cuda::kSuccess) return {};
  const char *name = nullptr, *text = nullptr;
  if (GetErrorName(result, &name) != cuda::kSuccess || !name) name = "an unknown error";
  if (GetErrorString(result, &text) != cuda::kSuccess || !text) text = "no description";
  return {RINGAR_DEVICE, std::string(call) + " failed with " + name + " (" +
                             std::to_string(result) + "): " + text};
}

Status open_cuda(const std::string& library, const Cuda** driver) {
  static std::mutex mutex;
  static Cuda functions;
  static bool opened = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!opened) RINGAR_RETURN_IF_ERROR(open_library(library, &functions));
  opened = true;
  *driver = &functions;
  return {};
}

CurrentContext::CurrentContext(const Cuda& driver, cuda::Context context)
    : driver_(driver), status_(RINGAR_CUDA(driver, CtxPushCurrent, context)) {
  if (status_.ok()) driver_.ThreadExchangeStreamCaptureMode(&capture_mode_);
}

CurrentContext::~CurrentContext() {
  if (!status_.ok()) return;
  cuda::Context popped = nullptr;
  driver_.ThreadExchangeStreamCaptureMode(&capture_mode_);
  driver_.CtxPopCurrent(&popped);
}

}  // namespace ringar
