#include "engine/gpu.h"

#include <cstdlib>
#include <utility>

namespace ringar {

Gpu::Gpu(std::string cuda_library, std::string nccl_library, double deadline,
         GpuMonitor::Report hangs)
    : cuda_library_(std::move(cuda_library)),
      nccl_library_(std::move(nccl_library)),
      deadline_(deadline),
      hangs_(std::move(hangs)) {}

Gpu::~Gpu() {
  close();
}

Status Gpu::use(int device) {
  const std::lock_guard<std::mutex> lock(opening_);
  if (watch_ && device == device_) return {};
  if (watch_)
    return {RINGAR_MISMATCH, "expected arrays on GPU " + std::to_string(device_) +
                                 ", which this rank's collectives have used so far, received some "
                                 "on GPU " +
                                 std::to_string(device) + "; a rank has one GPU"};
  const Status opened = open(device);
  if (!opened.ok()) close();
  return opened;
}

bool Gpu::is_open() {
  const std::lock_guard<std::mutex> lock(opening_);
  return watch_ != nullptr;
}

Status Gpu::open(int device) {
  if (!monitor_) monitor_.emplace(deadline_, hangs_);
  RINGAR_RETURN_IF_ERROR(open_cuda(cuda_library_, &driver_));
  RINGAR_RETURN_IF_ERROR(open_nccl(nccl_library_, &nccl_));
  int count = 0;
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver_, DeviceGetCount, &count));
  if (device < 0 || device >= count)
    return {RINGAR_MISMATCH, "expected a GPU from 0 to " + std::to_string(count - 1) +
                                 ", received " + std::to_string(device)};
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver_, DeviceGet, &handle_, device));
  RINGAR_RETURN_IF_ERROR(identify());
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver_, DevicePrimaryCtxRetain, &context_, handle_));
  device_ = device;
  const CurrentContext current(*driver_, context_);
  RINGAR_RETURN_IF_ERROR(current.status());
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver_, StreamCreate, &stream_, cuda::kStreamNonBlocking));
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver_, EventCreate, &ready_, cuda::kEventDisableTiming));
  watch_ = std::make_unique<GpuWatch>(*driver_, context_, stream_);
  return watch_->open();
}

Status Gpu::identify() {
  const char* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  card_.shares = shares && std::atoi(shares) != 0;
  card_.nccl_version = nccl_->version;
  return RINGAR_CUDA(*driver_, DeviceGetPCIBusId, card_.bus, sizeof card_.bus, handle_);
}

void Gpu::forget_sets() {
  if (monitor_) monitor_->forget_report();
}

// Work that does not end on the GPU may still use all of it.
void Gpu::close() {
  if (!context_) return;
  bool all_ended = true;
  {
    const CurrentContext current(*driver_, context_);
    if (watch_) all_ended = watch_->close();
    if (all_ended) {
      for (Staging& staging : staging_) free(staging);
      if (ready_) driver_->EventDestroy(ready_);
      if (stream_) driver_->StreamDestroy(stream_);
    }
  }
  if (all_ended) driver_->DevicePrimaryCtxRelease(handle_);
  watch_.reset();
  ready_ = nullptr;
  stream_ = nullptr;
  context_ = nullptr;
}

Status Gpu::staging(size_t number, size_t bytes, Staging** result) {
  Staging& staging = staging_[number];
  *result = &staging;
  if (staging.bytes >= bytes) return {};
  RINGAR_RETURN_IF_ERROR(watch_->wait_for_all());
  free(staging);
  cuda::Pointer device = 0;
  void* host = nullptr;
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver_, MemAlloc, &device, bytes));
  staging.device = reinterpret_cast<std::byte*>(device);
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(*driver_, MemHostAlloc, &host, bytes, cuda::kHostPortable));
  staging.host = static_cast<std::byte*>(host);
  RINGAR_RETURN_IF_ERROR(
      RINGAR_CUDA(*driver_, EventCreate, &staging.arrived, cuda::kEventDisableTiming));
  staging.bytes = bytes;
  return {};
}

void Gpu::free(Staging& staging) {
  if (staging.device) driver_->MemFree(reinterpret_cast<cuda::Pointer>(staging.device));
  if (staging.host) driver_->MemFreeHost(staging.host);
  if (staging.arrived) driver_->EventDestroy(staging.arrived);
  staging = {};
}

Status Gpu::device_of(void* stream, int* device) {
  const Cuda* driver = nullptr;
  RINGAR_RETURN_IF_ERROR(open_cuda(cuda_library_, &driver));
  cuda::Context context = nullptr;
  RINGAR_RETURN_IF_ERROR(
      RINGAR_CUDA(*driver, StreamGetCtx, static_cast<cuda::Stream>(stream), &context));
  const CurrentContext current(*driver, context);
  RINGAR_RETURN_IF_ERROR(current.status());
  return RINGAR_CUDA(*driver, CtxGetDevice, device);
}

// A graph would repeat NCCL's work without the ranks' agreement; and the work of another thread for
// the caller would go to the default stream of that thread.
Status Gpu::refuse_stream(void* stream) const {
  if (stream == cuda::kStreamPerThread)
    return {RINGAR_MISMATCH,
            "expected a stream that is the same on all threads, received the default stream of "
            "the calling thread (CU_STREAM_PER_THREAD); make a stream of your own current"};
  int capturing = cuda::kCaptureNone;
  RINGAR_RETURN_IF_ERROR(
      RINGAR_CUDA(*driver_, StreamIsCapturing, static_cast<cuda::Stream>(stream), &capturing));
  cuda::Context context = nullptr;
  if (capturing == cuda::kCaptureNone) {
    RINGAR_RETURN_IF_ERROR(
        RINGAR_CUDA(*driver_, StreamGetCtx, static_cast<cuda::Stream>(stream), &context));
    if (context == context_) return {};
    return {RINGAR_MISMATCH,
            "expected a stream of the primary context of GPU " + std::to_string(device_) +
                ", in which TensorFlow and CuPy work, received one of another context or GPU"};
  }
  return {RINGAR_MISMATCH,
          "expected a stream that runs what it is given, received one that captures a CUDA graph; "
          "leave collectives out of graphs"};
}

Status Gpu::begin(void* caller) {
  RINGAR_RETURN_IF_ERROR(
      RINGAR_CUDA(*driver_, EventRecord, ready_, static_cast<cuda::Stream>(caller)));
  return RINGAR_CUDA(*driver_, StreamWaitEvent, stream_, ready_, 0);
}

Status Gpu::end(void* caller, std::shared_ptr<Enqueued> entry) {
  RINGAR_RETURN_IF_ERROR(watch_->follow(entry));
  return RINGAR_CUDA(*driver_, StreamWaitEvent, static_cast<cuda::Stream>(caller), entry->done, 0);
}

}  // namespace ringar
