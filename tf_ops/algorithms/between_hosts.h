// The parts of `run_between_hosts`; see the essays in the .cc files.

#pragma once

#include <memory>
#include <vector>

#include "algorithms/chunks.h"
#include "algorithms/in_lanes.h"
#include "algorithms/recursive_doubling.h"
#include "algorithms/wire_codec.h"
#include "engine/communicator.h"
#include "engine/staging_buffers.h"
#include "engine/tuning.h"
#include "engine/ways_to_run.h"

namespace ringar {

Status allreduce_between_hosts(Communicator& communicator, Request& request);
Status reducescatter_between_hosts(Communicator& communicator, Request& request);
Status allgather_between_hosts(Communicator& communicator, Request& request);
Status broadcast_between_hosts(Communicator& communicator, Request& request);
Status alltoall_between_hosts(Communicator& communicator, Request& request);

// The algorithm for long arrays among the ranks of a group, with several chunks or blocks under
// way.
enum class LongWay { kRing, kHalvingDoubling };
// The algorithm between the hosts of a set, from its table.
LongWay long_way(const Communicator& communicator, size_t bytes);
LinkTuning tuning_of(LongWay way, size_t wire_bytes, int ranks);
std::unique_ptr<InLanes> open_lanes(LongWay way, InterNodeCommunicator& group, const Spec& spec,
                                    const Chunks& chunks, const WireCodec& codec,
                                    StagingBuffers& buffers, int lanes);

// Shared memory inside each host; in each rail halving and doubling, or a ring.
Status allreduce_hierarchical(Communicator& communicator, const Request& request,
                              const BufferList& array);

// After the handshake, among the ranks of `group`.
Status long_allreduce(Communicator& communicator, InterNodeCommunicator& group, LongWay way,
                      const Spec& spec, const BufferList& array);

// Data that the handshake carries, since ranks have to exchange its messages in any case.
class HandshakePayload : public PartialResult {
 public:
  // Copies this rank's part to its send buffer.
  virtual void publish(IntraNodeCommunicator& host) = 0;
  // Reduces the parts of all ranks of the host to `partial`.
  virtual void reduce_host(IntraNodeCommunicator& host, std::byte* partial) = 0;
};

// All ranks meet and learn whether they agree. The reduction of a `payload` is in `*result` until
// the next collective. A rank that has computing to go on with waits patiently for the others.
Status handshake_between_hosts(Communicator& communicator, HandshakePayload* payload = nullptr,
                               std::byte** result = nullptr,
                               WaitPolicy policy = WaitPolicy::kEager);
inline Status handshake_for(Communicator& communicator, size_t bytes) {
  return handshake_between_hosts(communicator, nullptr, nullptr, wait_policy_for(bytes));
}

}  // namespace ringar
