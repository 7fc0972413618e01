// Ranks of one process set that reach each other through the link: all of them, or one per host.

#pragma once

#include <cstddef>
#include <vector>

#include "engine/current.h"
#include "engine/vigil.h"
#include "links/link.h"

namespace ringar {

class LinkGroup {
 public:
  // Messages of one channel do not overtake one another; those of different channels may.
  static constexpr int kChannels = 32;
  // As many process sets as there are tags for: MPI promises those up to 32,767, 0 is that of
  // notices, and those of messages come last (link_channel.cc) and need about half of them.
  static constexpr int kMostSets = 32767 / 2 / kChannels;
  static constexpr int kLastTag = kMostSets * kChannels;

  // `rank` is this one's place among `job_ranks`.
  LinkGroup(std::vector<int> job_ranks, int rank, Link& link, const Patience& patience,
            Current& current);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(job_ranks_.size()); }
  int job_rank(int rank) const { return job_ranks_[static_cast<size_t>(rank)]; }
  // The rank `distance` places further in the ring.
  int neighbor(int distance) const { return (rank_ + distance + size()) % size(); }

  Status send(int to, int channel, const std::byte* data, size_t bytes, int* ticket);
  Status receive(int from, int channel, std::byte* data, size_t bytes, int* ticket,
                 Link::Length length = Link::Length::kExact);
  // Looks after all transfers; poll() then tells of one.
  Status progress() { return link_.progress(); }
  // Sets the ticket to -1 when the transfer is done; one that is -1 is done.
  Status poll(int* ticket, bool* moved);

  // A short exchange is waited for eagerly. While much is under way the link does not run dry in
  // the time of a nap, and the processor belongs to those who compute.
  enum class Haste { kEager, kPatient };
  static Haste haste_for(size_t bytes) {
    return bytes < (size_t{1} << 20) ? Haste::kEager : Haste::kPatient;
  }

  // Calls advance(&moved, &done) until it sets done; as long as nothing moves, looks after the
  // peers and leaves the processor to others.
  template <typename Advance>
  Status until_done(Haste haste, Advance advance) {
    for (bool done = false;;) {
      bool moved = false;
      RINGAR_RETURN_IF_ERROR(link_.progress());
      RINGAR_RETURN_IF_ERROR(advance(&moved, &done));
      if (done) return {};
      if (!moved) RINGAR_RETURN_IF_ERROR(wait_for_movement(haste, advance, &done));
      if (done) return {};
    }
  }
  // Waits for the given transfers.
  Status finish(Haste haste, int* tickets, size_t count);

  template <typename Work>
  void timed(Stretch::Kind kind, Work work) {
    current_.timed(kind, work);
  }

 private:
  template <typename Advance>
  Status wait_for_movement(Haste haste, Advance advance, bool* done) {
    const int64_t begin = current_.tracing ? monotonic_ns() : 0;
    Vigil vigil(patience_, current_);
    const auto look = [&](bool* over) -> Status {
      bool moved = false;
      RINGAR_RETURN_IF_ERROR(link_.progress());
      RINGAR_RETURN_IF_ERROR(advance(&moved, done));
      *over = moved || *done;
      return {};
    };
    RINGAR_RETURN_IF_ERROR(wait_until(rest(haste), nullptr, look, [&] { return check(vigil); }));
    if (haste == Haste::kPatient) usual_wait_ += (vigil.seconds() - usual_wait_) / 8;
    if (current_.tracing) current_.trace.add(Stretch::kWait, begin);
    return {};
  }

  int tag(int channel) const { return 1 + current_.slot * kChannels + channel; }
  Rest rest(Haste haste) const;
  static Status check(Vigil& vigil);

  const std::vector<int> job_ranks_;
  const int rank_;
  Link& link_;
  double usual_wait_ = 0;  // seconds, of patient ones
  const Patience& patience_;
  Current& current_;
};

}  // namespace ringar
