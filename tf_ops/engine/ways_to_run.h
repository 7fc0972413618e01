// The ways of running a collective, one file or more of tf_ops/algorithms/ each. The engine knows
// these four functions alone, so that algorithms include the engine and not the other way round.

#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/request.h"
#include "engine/status.h"

namespace ringar {

class Communicator;
class IntraNodeCommunicator;

// A process set of one rank: copies, scaled where asked.
Status run_alone(Request& request);
// The ranks of one host, through the shared segment.
Status run_in_shared_memory(IntraNodeCommunicator& host, Request& request);
// Ranks that do not all share memory. Each collective begins with a handshake, in which all ranks
// learn whether they agree.
Status run_between_hosts(Communicator& communicator, Request& request);
// Arrays in the memory of GPUs. Enqueues the collective and returns; see engine/gpu.h.
Status run_on_gpus(Communicator& communicator, Request& request);

// The begin of a handshake's message: whether the ranks known so far run the same collective.
struct ConsistencyCheck {
  uint64_t digest;
  uint64_t disagree;

  void hear(const ConsistencyCheck& other) {
    disagree |= static_cast<uint64_t>(other.disagree || other.digest != digest);
  }
};

// The longest partial result that follows in the same message.
constexpr size_t kMaxPartialBytes = 256 * 1024;

}  // namespace ringar
