// One process set of one rank: the steps in which its ranks exchange bytes through the arena.
//
// A collective is a sequence of steps. In a step every rank writes to its own outbox, raises its
// `arrived` flag, waits until all others have raised theirs, and reads from their outboxes:
//
//     rank 0   write out[0] | arrived=1 | read the others' out[0] | write out[1] | arrived=2 | ...
//     rank 1   write out[0] | arrived=1 | read the others' out[0] | write out[1] | arrived=2 | ...
//
// There are two outboxes, used in turn, and that is all the synchronization it takes: who raises
// arrived for step s+1 has finished reading step s, so whoever has seen all flags of step s+1 may
// write outbox s again, in step s+2. An algorithm that reduces has a second pair, the `result`
// boxes, announced by a second flag; the same argument covers them, because a rank reads the
// results of step s before it arrives at s+2 (see shared_memory_reduce.cc).
//
// The first step of every collective carries the rank's signature. A wait ends in one of three
// ways: the flag, a Status that says who is missing and why, or, after a while, a warning.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "algorithms/workspace.h"
#include "engine/arena.h"
#include "engine/flag.h"
#include "engine/request.h"
#include "engine/signature.h"
#include "engine/timeline.h"
#include "engine/tuning.h"

namespace ringar {

struct Patience {
  double deadline = 600;
  double stall_warning = 30;
  int spin_microseconds = 50;               // before sleeping; 0 where ranks share cores
  const std::atomic<bool>* stop = nullptr;  // set when this rank shuts down
};

class Communicator {
 public:
  // `ranks` are ranks of the job, `rank` is this one's place among them. Memory lies at `offset` of
  // the arena's generation. A set of one rank needs no arena.
  Communicator(int id, std::vector<int> ranks, int rank, Arena* arena, uint64_t offset,
               const Patience& patience);
  ~Communicator();

  static size_t arena_bytes(int size);  // what a set of `size` ranks takes

  // Runs a collective to its end. After a lost peer or a missed deadline the ranks are no longer at
  // the same step, and every later call returns that same error.
  Status run(Request& request);

  int id() const { return id_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  bool has_memory() const { return size() == 1 || memory_ != nullptr; }

  // For algorithms ------------------------------------------------------------------------------

  size_t slice_bytes() const { return tuning_.slice_bytes; }
  size_t outbox_bytes() const { return slice_bytes() * ranks_.size(); }
  size_t small_allreduce_bytes() const { return tuning_.small_allreduce_bytes; }
  Workspace& workspace() { return workspace_; }
  std::byte* outbox(int rank) const;                 // of the step under way
  std::byte* result(int rank, uint64_t step) const;  // slice_bytes() each
  uint64_t step() const { return step_; }

  // The first exchange of a collective: compares signatures, too.
  Status open();
  // Arrives, and waits for all others.
  Status exchange();
  void finish_step();

  // Does some of the work of a collective, and notes in the timeline how long it took.
  template <typename Work>
  void timed(Stretch::Kind kind, Work work) {
    const int64_t begin = tracing_ ? monotonic_ns() : 0;
    work();
    if (tracing_) trace_.add(kind, begin);
  }

  void post_result();
  Status wait_for_result(int rank, uint64_t step);

 private:
  struct Line;

  Line& line(int rank) const;
  Signature& signature(int rank, uint64_t sequence) const;
  Status compare_signatures() const;
  Status wait(Flag Line::* which, uint64_t target, int rank);
  Status wait_patiently(Flag Line::* which, uint64_t target, int rank);
  Status look_after_peers(Flag Line::* which, uint64_t target) const;
  std::string whom_we_wait_for(Flag Line::* which, uint64_t target) const;
  std::string prefix() const;

  const int id_;
  const std::vector<int> ranks_;
  const int rank_;
  Arena* const arena_;
  const Patience& patience_;
  const Tuning tuning_;
  const size_t part_bytes_;  // of each rank, in memory_
  Workspace workspace_;
  std::byte* memory_ = nullptr;

  uint64_t step_ = 0;      // the step under way
  uint64_t sequence_ = 0;  // collectives begun
  Signature current_;
  bool tracing_ = false;  // whether there is a timeline, for the collective under way
  Trace trace_;
  Status broken_;
};

}  // namespace ringar
