// An exchange between hosts that takes an array chunk by chunk, or block by block, several of them
// at a time, each in a lane of its own.

#pragma once

#include <cstddef>

#include "engine/inter_node_communicator.h"

namespace ringar {

class InLanes : public InFlight {
 public:
  InLanes(InterNodeCommunicator& group, size_t count) : group_(group), count_(count) {}

  // Lets chunks before `count` go.
  void release(size_t count) { released_ = count; }
  // Goes on with what the link has found; `moved`: whether anything came or went.
  virtual Status advance(bool* moved) = 0;
  // Whether chunks before `count` have come to their end.
  virtual bool has_finished(size_t count) const = 0;

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
  InterNodeCommunicator& group() const { return group_; }
  size_t released() const { return released_; }

 private:
  InterNodeCommunicator& group_;
  const size_t count_;
  size_t released_ = 0;
};

}  // namespace ringar
