// The parts of `run_on_gpus`; see the essays in the .cc files.

#pragma once

#include "engine/communicator.h"
#include "engine/ways_to_run.h"

namespace ringar {

// All ranks meet and learn whether they agree; they exchange no data.
Status handshake_on_hosts(Communicator& communicator, const Spec& spec);

// Opens the communicator of a group, whose first rank is rank `first` of the set, if that was not
// done before. All ranks of the set do so.
Status open_gpus(Communicator& communicator, GpuCommunicator& group, int first, const Spec& spec);

// An allreduce with NCCL inside each host and MPI between them. `entry` stands for it.
Status enqueue_hierarchical(Communicator& communicator, const Request& request,
                            const std::shared_ptr<Enqueued>& entry);

}  // namespace ringar
