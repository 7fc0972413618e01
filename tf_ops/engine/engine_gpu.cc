// The engine's part in collectives on GPUs, beside running them.

#include "engine/engine.h"

namespace ringar {

Status Engine::wait_on_gpu(const OnGpu& on_gpu) {
  if (!on_gpu.enqueued) return {};
  const CurrentContext current(gpu_->driver(), gpu_->context());
  RINGAR_RETURN_IF_ERROR(current.status());
  return gpu_->watch().wait_for(*on_gpu.enqueued);
}

Status Engine::synchronize_gpu() {
  if (!gpu_->is_open()) return {};
  const CurrentContext current(gpu_->driver(), gpu_->context());
  RINGAR_RETURN_IF_ERROR(current.status());
  return gpu_->watch().wait_for_all();
}

// Where all ranks have a communicator already, a new set's is split off it, by all ranks: sooner
// than by an invitation when its first collective comes.
Status Engine::split_gpus(Communicator* part) {
  const Communicator* const all = process_set(0);
  if (!all || all->is_broken() || !all->gpus()->is_open()) return {};
  const CurrentContext current(gpu_->driver(), gpu_->context());
  RINGAR_RETURN_IF_ERROR(current.status());
  const Status split = all->gpus()->split(part ? part->gpus().get() : nullptr);
  if (split.ok()) return {};
  const Status failure(split.code(), who() + "add_process_set: " + split.message());
  gpu_->watch().fail(*all->gpus(), failure);
  return failure;
}

void Engine::close_gpus() {
  for (const auto& [id, set] : sets_) set->close_gpus();
}

}  // namespace ringar
