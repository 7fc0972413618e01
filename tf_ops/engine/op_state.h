// The collective that a process set runs now: the prefix of its messages, and the times of its
// parts.

#pragma once

#include <string>
#include <vector>

#include "engine/peers.h"
#include "engine/signature.h"
#include "engine/status.h"
#include "engine/timeline.h"

namespace ringar {

// Transfers that go on while the rank waits for something else, as long as they are polled.
class InFlight {
 public:
  virtual ~InFlight() = default;
  // Has the link look, and goes on with what it has found.
  virtual Status keep_going() = 0;
};

struct OpState {
  const int rank;  // of the job
  const int set_id;
  const int slot;                   // no other set has it at the same time
  const std::vector<int>& members;  // ranks of the job
  Peers* const peers;               // null in a job on one host

  Signature signature{};
  bool tracing = false;  // whether there is a timeline
  Trace trace{};
  InFlight* in_flight = nullptr;

  uint64_t sequence() const { return signature.sequence; }
  std::string prefix() const {
    return "rank " + std::to_string(rank) + " | " + signature.describe() + ": ";
  }

  // Does some of the work, and notes in the timeline how long it took.
  template <typename Work>
  void timed(Span::Kind kind, Work work) {
    const int64_t begin = tracing ? monotonic_ns() : 0;
    work();
    if (tracing) trace.add(kind, begin);
  }
};

}  // namespace ringar
