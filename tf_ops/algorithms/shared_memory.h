// The parts of `run_in_shared_memory`; see the essays in the two .cc files.

#pragma once

#include "engine/intra_node_communicator.h"
#include "engine/ways_to_run.h"

namespace ringar {

Status allreduce_in_shared_memory(IntraNodeCommunicator& host, Request& request);
Status reducescatter_in_shared_memory(IntraNodeCommunicator& host, Request& request);
Status allgather_in_shared_memory(IntraNodeCommunicator& host, Request& request);
Status broadcast_in_shared_memory(IntraNodeCommunicator& host, Request& request);
Status alltoall_in_shared_memory(IntraNodeCommunicator& host, Request& request);

}  // namespace ringar
