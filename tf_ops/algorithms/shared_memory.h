// Collectives of the ranks of one host, through the arena. See the essays in the two .cc files.

#pragma once

#include "engine/communicator.h"

namespace ringar {

Status run_in_shared_memory(Communicator& communicator, Request& request);

// The same collectives for a process set of one rank: copies, scaled where asked.
Status run_alone(Request& request);

// Up to this many bytes every rank reads all inputs and reduces everything by itself: one exchange
// instead of two. Above it, each rank reduces its slice.
constexpr size_t kSmallAllreduceBytes = 32 << 10;

Status allreduce_in_shared_memory(Communicator& communicator, Request& request);
Status reducescatter_in_shared_memory(Communicator& communicator, Request& request);
Status allgather_in_shared_memory(Communicator& communicator, Request& request);
Status broadcast_in_shared_memory(Communicator& communicator, Request& request);
Status alltoall_in_shared_memory(Communicator& communicator, Request& request);

}  // namespace ringar
