// The state that all process sets of this rank share.

#pragma once

#include <cstddef>
#include <vector>

#include "engine/peers.h"
#include "engine/shared_segment.h"
#include "engine/topology.h"
#include "engine/tuning.h"
#include "engine/types.h"
#include "engine/watchdog.h"
#include "links/link.h"

namespace ringar {

class Gpu;

struct World {
  Topology topology;
  Timeouts timeouts;
  SharedSegment* segment = nullptr;        // null where this rank is alone on its host
  Link* link = nullptr;                    // null in a job that MPI did not start
  bool has_streams = false;                // whether collectives take several streams of it
  Peers* peers = nullptr;                  // with a link
  Gpu* gpu = nullptr;                      // opened when it is needed
  Algorithm algorithm = Algorithm::kAuto;  // for calls that leave the choice
  size_t past_caches_bytes = kNever;       // see tuning.h
  // Up to how many bytes recursive doubling takes less time than a ring, by number of participants.
  std::vector<size_t> recursive_doubling_bytes;

  size_t recursive_doubling_bytes_for(int participants) const {
    const auto n = static_cast<size_t>(participants);
    return n < recursive_doubling_bytes.size() ? recursive_doubling_bytes[n] : 16384;
  }

  // The same for halving and doubling. Fewer participants than `kLeastForHalvingDoubling` send the
  // messages of a ring, whose chunks are shorter.
  static constexpr int kLeastForHalvingDoubling = 4;
  std::vector<size_t> halving_doubling_bytes;

  size_t halving_doubling_bytes_for(int participants) const {
    const auto n = static_cast<size_t>(participants);
    if (participants < kLeastForHalvingDoubling) return 0;
    return n < halving_doubling_bytes.size() ? halving_doubling_bytes[n] : 262144;
  }
};

}  // namespace ringar
