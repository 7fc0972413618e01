// An exchange between hosts that takes an array chunk by chunk, or block by block, several of them
// at a time, each in a lane of its own.

#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "engine/inter_node_communicator.h"
#include "engine/staging_buffers.h"

namespace ringar {

class InLanes : public InFlight {
 public:
  // Lets chunks before `count` go.
  void release(size_t count) { released_ = count; }
  // Goes on with what the link has brought; `moved`: whether anything came or went.
  Status advance(bool* moved);
  // Whether chunks before `count` have come to their end.
  bool has_finished(size_t count) const {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [&](const Lane& lane) { return lane.chunk >= count; });
  }

  Status keep_going() override {
    bool moved = false;
    RINGAR_RETURN_IF_ERROR(group_.progress());
    return advance(&moved);
  }

  // Waits for the end of chunks before `count`, which have been let go.
  Status wait_for(size_t count, WaitPolicy policy) {
    return group_.until_done(policy, [&](bool* moved, bool* done) -> Status {
      RINGAR_RETURN_IF_ERROR(advance(moved));
      *done = has_finished(count);
      return {};
    });
  }
  // Lets all chunks go, and waits for their end.
  Status run(WaitPolicy policy) {
    release(count_);
    return wait_for(count_, policy);
  }

 protected:
  struct Lane {
    size_t chunk;    // under way, or the next one
    int round = -1;  // -1 if no chunk is under way
    std::byte *sums, *incoming;
    int sending = -1, receiving = -1;
  };

  InLanes(InterNodeCommunicator& group, size_t count) : group_(group), count_(count) {}

  // At most `lanes`, with buffers of so many bytes; `last_round`: of each chunk.
  void open(int lanes, int last_round, StagingBuffers& buffers, size_t bytes_of_sums,
            size_t bytes_received);
  InterNodeCommunicator& group() const { return group_; }

 private:
  // Puts this rank's part of a chunk into its lane and posts the messages of the first round.
  virtual Status start(Lane& lane, int channel) = 0;
  // Posts the messages of a lane's round.
  virtual Status post(Lane& lane, int channel) = 0;
  // Processes the message that a round has received.
  virtual void take_in(Lane& lane) = 0;

  InterNodeCommunicator& group_;
  const size_t count_;
  size_t released_ = 0;
  int last_round_ = -1;
  std::vector<Lane> lanes_;
};

}  // namespace ringar
