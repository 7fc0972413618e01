// Ranks of one process set that reach each other through the link: all of them, or one per host.

#pragma once

#include <cstddef>
#include <vector>

#include "engine/op_state.h"
#include "engine/watchdog.h"
#include "engine/world.h"
#include "links/link.h"

namespace ringar {

// A short exchange is waited for eagerly. While much is under way the link does not run dry in
// the time of a nap, and the processor belongs to those who compute.
enum class WaitPolicy { kEager, kPatient };
inline WaitPolicy wait_policy_for(size_t bytes) {
  return bytes < (size_t{1} << 20) ? WaitPolicy::kEager : WaitPolicy::kPatient;
}

class InterNodeCommunicator {
 public:
  // Messages of one channel do not overtake one another; those of different channels may.
  static constexpr int kChannels = 32;
  // As many process sets as there are tags for: MPI promises those up to 32,767, 0 is that of
  // control messages, and those of messages come last (link_channel.cc) and need about half of
  // them.
  static constexpr int kMostSets = 32767 / 2 / kChannels;
  static constexpr int kLastTag = kMostSets * kChannels;

  // `rank` is this one's place among `job_ranks`.
  InterNodeCommunicator(std::vector<int> job_ranks, int rank, const World& world,
                        OpState& op_state);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(job_ranks_.size()); }
  int job_rank(int rank) const { return job_ranks_[static_cast<size_t>(rank)]; }
  // The rank `distance` places further in the ring.
  int neighbor(int distance) const { return (rank_ + distance + size()) % size(); }

  Status send(int to, int channel, const std::byte* data, size_t bytes, int* handle);
  Status receive(int from, int channel, std::byte* data, size_t bytes, int* handle,
                 Link::Length length = Link::Length::kExact);
  // Looks after all transfers; poll() then tells of one.
  Status progress() { return link_.progress(); }
  // Sets the handle to -1 when the transfer is done; one that is -1 is done.
  Status poll(int* handle, bool* moved);

  // Calls advance(&moved, &done) until it sets done; as long as nothing moves, looks after the
  // peers and leaves the processor to others.
  template <typename Advance>
  Status until_done(WaitPolicy policy, Advance advance) {
    for (bool done = false;;) {
      bool moved = false;
      RINGAR_RETURN_IF_ERROR(link_.progress());
      RINGAR_RETURN_IF_ERROR(advance(&moved, &done));
      if (done) return {};
      if (!moved) RINGAR_RETURN_IF_ERROR(wait_for_movement(policy, advance, &done));
      if (done) return {};
    }
  }
  // Waits for the given transfers.
  Status finish(WaitPolicy policy, int* handles, size_t count);

  template <typename Work>
  void timed(Span::Kind kind, Work work) {
    op_state_.timed(kind, work);
  }

 private:
  template <typename Advance>
  Status wait_for_movement(WaitPolicy policy, Advance advance, bool* done) {
    const int64_t begin = op_state_.tracing ? monotonic_ns() : 0;
    Watchdog watchdog(world_.timeouts, op_state_);
    const auto look = [&](bool* over) -> Status {
      bool moved = false;
      RINGAR_RETURN_IF_ERROR(link_.progress());
      RINGAR_RETURN_IF_ERROR(advance(&moved, done));
      *over = moved || *done;
      return {};
    };
    const auto sleep = [this](double seconds) { link_.sleep(seconds); };
    RINGAR_RETURN_IF_ERROR(wait_with(rest(policy), sleep, look, [&] { return check(watchdog); }));
    if (policy == WaitPolicy::kPatient) usual_wait_ += (watchdog.seconds() - usual_wait_) / 8;
    if (op_state_.tracing) op_state_.trace.add(Span::kWait, begin);
    return {};
  }

  int tag(int channel) const {
    const int tag = 1 + op_state_.slot * kChannels + channel;
    return world_.has_streams ? Link::apart(tag) : tag;
  }
  Rest rest(WaitPolicy policy) const;
  static Status check(Watchdog& watchdog);

  const std::vector<int> job_ranks_;
  const int rank_;
  const World& world_;
  Link& link_;
  double usual_wait_ = 0;  // seconds, of patient ones
  OpState& op_state_;
};

}  // namespace ringar
