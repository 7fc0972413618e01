// Collectives of the ranks of one host, through the shared segment. See the essays in the two .cc
// files.

#pragma once

#include "engine/intra_node_communicator.h"

namespace ringar {

Status run_in_shared_memory(IntraNodeCommunicator& host, Request& request);

// The same collectives for a process set of one rank: copies, scaled where asked.
Status run_alone(Request& request);

Status allreduce_in_shared_memory(IntraNodeCommunicator& host, Request& request);
Status reducescatter_in_shared_memory(IntraNodeCommunicator& host, Request& request);
Status allgather_in_shared_memory(IntraNodeCommunicator& host, Request& request);
Status broadcast_in_shared_memory(IntraNodeCommunicator& host, Request& request);
Status alltoall_in_shared_memory(IntraNodeCommunicator& host, Request& request);

}  // namespace ringar
