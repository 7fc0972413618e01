// Collectives of arrays in the memory of GPUs; see the essays in the .cc files.

#pragma once

#include "engine/communicator.h"

namespace ringar {

// Enqueues the collective and returns; see engine/gpu.h.
Status run_on_gpus(Communicator& communicator, Request& request);

// All ranks come, and learn whether they agree; they exchange nothing.
Status handshake_on_hosts(Communicator& communicator, const Spec& spec);

// Opens the communicator of a group, whose first rank is rank `first` of the set, if that was not
// done before. All ranks of the set do so.
Status open_gpus(Communicator& communicator, GpuCommunicator& group, int first, const Spec& spec);

// The factor of a sum, the one before it and the one after it: NCCL knows one.
inline double factor_of(const Spec& spec) {
  return spec.prescale * spec.postscale;
}

// An allreduce with NCCL inside each host and MPI between them. `entry` stands for it.
Status enqueue_hierarchical(Communicator& communicator, const Request& request,
                            const std::shared_ptr<Enqueued>& entry);

}  // namespace ringar
