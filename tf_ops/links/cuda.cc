#include "links/cuda.h"

#include <mutex>

#include "links/library.h"

namespace ringar {
namespace {

struct CudaRemedy {
  cuda::Result error;
  const char* text;
};

// Of errors that tell of the machine or of the process, and not of a call.
constexpr CudaRemedy kCudaRemedies[] = {
    {cuda::kOutOfMemory,
     "The GPU's memory is full: let TensorFlow grow (TF_FORCE_GPU_ALLOW_GROWTH=true), or give it a "
     "limit"},
    {cuda::kNotInitialized,
     "Was this process forked from one that had used a GPU? Start processes by spawn, or before "
     "anything uses a GPU"},
    {cuda::kStubLibrary,
     "The file is the CUDA toolkit's stub: let LD_LIBRARY_PATH or RINGAR_CUDA_LIBRARY lead to the "
     "libcuda.so.1 of NVIDIA's driver"},
    {cuda::kDeviceUnavailable,
     "Another process has the GPU for itself (nvidia-smi -q -d COMPUTE): give each rank a GPU of "
     "its own, or run nvidia-smi -c DEFAULT"},
    {cuda::kNoDevice,
     "Check CUDA_VISIBLE_DEVICES, and that the container or the scheduler's job has GPUs (docker "
     "run --gpus all, sbatch --gpus)"},
    {cuda::kNotLicensed, "Install the licence of the virtual GPU"},
    {cuda::kEccError, "The GPU's memory is faulty: see nvidia-smi -q -d ECC, and dmesg for an Xid"},
    {cuda::kNvlinkError, "An NVLink is faulty: see nvidia-smi nvlink -e, and dmesg for an Xid"},
    {cuda::kIllegalAddress,
     "A kernel of this process has failed; CUDA_LAUNCH_BLOCKING=1 shows which"},
    {cuda::kLaunchTimeout,
     "A kernel of this process took longer than the driver lets it, as on a GPU with a display"},
    {cuda::kLaunchFailed,
     "A kernel of this process has failed; CUDA_LAUNCH_BLOCKING=1 shows which"},
    {cuda::kSystemNotReady,
     "GPUs behind NVSwitch need the fabric manager: systemctl start nvidia-fabricmanager"},
    {cuda::kDriverMismatch,
     "The kernel runs another version of NVIDIA's driver than libcuda.so.1 belongs to: reboot, or "
     "give the container the host's driver"},
    {cuda::kCompatNotSupported,
     "Take the folder of cuda-compat out of LD_LIBRARY_PATH, or update NVIDIA's driver: this GPU "
     "does not run with that package"},
    {cuda::kNoMps, "CUDA_MPS_PIPE_DIRECTORY names no running MPS: nvidia-cuda-mps-control -d"},
};

Status open_library(const std::string& file, Cuda* driver) {
  Library library("the driver of an NVIDIA GPU",
                  "Install NVIDIA's driver, or name its library: RINGAR_CUDA_LIBRARY.");
  RINGAR_RETURN_IF_ERROR(library.open(file.empty() ? "libcuda.so.1" : file));
#define RINGAR_FIND(name, exported, arguments) \
  driver->name.bind(#exported, library.find(#exported));
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
  std::string what =
      std::string(call) + " failed with " + name + " (" + std::to_string(result) + "): " + text;
  for (const CudaRemedy& remedy : kCudaRemedies)
    if (remedy.error == result) what += std::string(". ") + remedy.text;
  return {RINGAR_DEVICE, what};
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
