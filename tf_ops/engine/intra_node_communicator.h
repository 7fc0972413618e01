// The ranks of one process set on one host: the steps in which they exchange bytes through the
// shared segment.
//
// A collective is a sequence of steps. In a step every rank writes to its own send buffer, raises
// its `arrived` flag, waits until all others have raised theirs, and reads from their send buffers:
//
//     rank 0   write out[0] | arrived=1 | read the others' out[0] | write out[1] | arrived=2 | ...
//     rank 1   write out[0] | arrived=1 | read the others' out[0] | write out[1] | arrived=2 | ...
//
// The send buffers of two steps that follow each other lie apart (buffer_ring.h), and that is all
// the synchronization it takes: who raises arrived for step s+1 has finished reading step s, so
// whoever has seen all flags of step s+1 may write to send buffer s again, in step s+2. An
// algorithm that reduces has a second ring, of `result` buffers, announced by a second flag; the
// same argument covers them, because a rank reads the results of step s before it arrives at s+2
// (see shared_memory_reduce.cc).
//
// The first step of every collective carries the rank's signature, and its digest beside the flag.
// A wait ends in one of three ways: the flag, a Status that says who is missing and why, or, after
// a while, a warning.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/buffer_ring.h"
#include "engine/flag.h"
#include "engine/op_state.h"
#include "engine/shared_segment.h"
#include "engine/tuning.h"
#include "engine/watchdog.h"
#include "engine/workspace.h"

namespace ringar {

class IntraNodeCommunicator {
 public:
  // Who they are: their ranks in the job, and their places in the shared segment.
  struct Member {
    int job_rank, segment_place;
  };

  // `rank` is this one's place among `members`. Memory lies at `offset` of the shared segment's
  // generation; each rank has reserved its part. A group of one rank needs none.
  IntraNodeCommunicator(int set_id, std::vector<Member> members, int rank, SharedSegment* segment,
                        uint64_t offset, const Timeouts& timeouts, OpState& op_state);
  ~IntraNodeCommunicator();
  IntraNodeCommunicator(const IntraNodeCommunicator&) = delete;
  IntraNodeCommunicator& operator=(const IntraNodeCommunicator&) = delete;

  // The bytes that a group of `size` ranks takes, and the part that a rank writes.
  static size_t shared_bytes(int size);
  static Extent part(int size, int rank, uint64_t offset);
  static size_t send_buffer_bytes(size_t size) { return tuning_for(size).slice_bytes * size; }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  bool has_memory() const { return size() == 1 || memory_ != nullptr; }

  size_t slice_bytes() const { return tuning_.slice_bytes; }
  size_t send_buffer_bytes() const { return slice_bytes() * members_.size(); }
  size_t small_allreduce_bytes() const { return tuning_.small_allreduce_bytes; }
  // Whether an allreduce of so many bytes stores its results past the caches.
  bool stores_past_caches(size_t bytes) const { return bytes >= past_caches_bytes_; }
  void store_past_caches_from(size_t bytes) { past_caches_bytes_ = bytes; }
  Workspace& workspace() { return workspace_; }
  // Null if there is none.
  const OutputPool* outputs() const { return segment_->outputs().get(); }
  // Memory of the pool, or null.
  std::unique_ptr<OutputPool::Memory> take_output(size_t bytes) const {
    return outputs() ? segment_->outputs()->take(bytes) : nullptr;
  }
  // The offset of memory in this rank's part of the pool, plus one; 0: elsewhere. And the memory of
  // another rank at such an offer; null for 0.
  uint64_t offer_of(const std::byte* memory) const {
    return outputs() && outputs()->has(memory) ? outputs()->offset_of(memory) + 1 : 0;
  }
  std::byte* offered(int rank, uint64_t offer) const {
    const int place = members_[static_cast<size_t>(rank)].segment_place;
    return offer ? outputs()->at(place, offer - 1) : nullptr;
  }
  std::byte* send_buffer(int rank) const;  // of the step under way
  // Of the step under way, or of the one before; slice_bytes() each.
  std::byte* result(int rank, uint64_t step) const;
  uint64_t step() const { return step_; }

  // The first exchange of a collective. A disagreement, after which the step is finished, is an
  // error of handshake(); check_consistency() only tells of it.
  Status handshake();
  Status check_consistency(bool* agree);
  // Arrives, and waits for all others.
  Status exchange();
  // No rank has written more than so many bytes of its send and of its result buffer. All ranks
  // give the same numbers, so they leave out what they cannot know alike.
  void finish_step(size_t send_bytes = SIZE_MAX, size_t result_bytes = SIZE_MAX);
  // Ends a collective in which ranks read each other's inputs where they lie: returns when nobody
  // reads this rank's any longer.
  Status part_from_inputs();
  // Whether the inputs read there until now were unchanged.
  Status inputs_were_kept() const;

  // Does some of the work of a collective, and notes in the timeline how long it took.
  template <typename Work>
  void timed(Span::Kind kind, Work work) {
    op_state_.timed(kind, work);
  }

  void post_result();
  Status wait_for_result(int rank, uint64_t step);

 private:
  struct Line;

  Line& line(int rank) const;
  Signature& signature(int rank, uint64_t sequence) const;
  Status disagreement_here() const;
  Status wait(Flag Line::* field, uint64_t target, int rank);
  Status wait_with_watchdog(Flag Line::* field, uint64_t target, int rank);
  std::string trouble_of_peers(Flag Line::* field, uint64_t target) const;
  std::string whom_we_wait_for(Flag Line::* field, uint64_t target) const;

  const int set_id_;
  const std::vector<Member> members_;
  const int rank_;
  SharedSegment* const segment_;
  const Timeouts& timeouts_;
  OpState& op_state_;
  const Tuning tuning_;
  size_t past_caches_bytes_ = kNever;
  const size_t part_bytes_;  // of each rank, in memory_
  Workspace workspace_;
  std::byte* memory_ = nullptr;
  uint64_t step_ = 0;  // the step under way
  BufferRing sends_, results_;
};

}  // namespace ringar
