// The engine's part in collectives on GPUs, beside running them.

#include "engine/engine.h"

namespace ringar {

// No other rank would hear of an error of CUDA outside of a collective.
Status Engine::gpu_has_failed(const char* where, const Status& why) {
  if (why.ok()) return {};
  const Status failure(why.code(), who() + where + ": " + why.message());
  for (const auto& set : sets()) set->communicator().break_for_good(failure);
  return failure;
}

Status Engine::wait_on_gpu(const OnGpu& on_gpu) {
  if (!on_gpu.enqueued) return {};
  const CurrentContext current(gpu_->driver(), gpu_->context());
  if (!current.status().ok()) return gpu_has_failed("wait for a GPU", current.status());
  return gpu_->watch().wait_for(*on_gpu.enqueued);
}

Status Engine::synchronize_gpu() {
  if (!gpu_->is_open()) return {};
  const CurrentContext current(gpu_->driver(), gpu_->context());
  if (!current.status().ok()) return gpu_has_failed("synchronize", current.status());
  RINGAR_RETURN_IF_ERROR(gpu_->watch().wait_for_all());
  // Unnoted: it may wait for a kernel of the caller, as long as that takes.
  const Cuda& driver = gpu_->driver();
  const cuda::Result result = driver.StreamSynchronize.pointer()(gpu_->stream());
  return gpu_has_failed("synchronize", driver.check("cuStreamSynchronize", result));
}

// Once all ranks have a communicator, they split off that of a new set: this is faster than an
// invitation with the set's first collective.
Status Engine::split_gpus(Communicator* part) {
  const auto all = process_set(0);
  if (!all || all->is_broken() || !all->gpus()->is_open()) return {};
  const std::lock_guard<std::mutex> order(gpu_->order());
  const CurrentContext current(gpu_->driver(), gpu_->context());
  Status split = current.status();
  // NCCL splits a communicator that has nothing under way.
  if (split.ok()) split = gpu_->watch().wait_for_all();
  if (split.ok()) split = all->gpus()->split(part ? part->gpus().get() : nullptr);
  return gpu_has_failed("add_process_set", split);
}

}  // namespace ringar
