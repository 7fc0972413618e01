// The state of the other ranks in a job on several hosts: which of them wait, have left, have given
// up or have died.
//
// Death is seen on the dead rank's host alone (engine/shared_segment.h). All else travels as
// control messages, small ones, which ranks read while they wait. No rank tells all others: in a
// process set of n ranks each has neighbors, those 1, 2, 4, ... places away, and so 2 log2(n) of
// them at most.
//
// - A rank that waits for long tells its neighbors, the next ones at a time, whom it knows to wait
//   in that collective, itself included. All that wait know of one another after log2(n) such
//   rounds, as in a dissemination barrier (Hensgen, Finkel and Manber 1988). The missing ranks are
//   the others. Since they pass nothing on, knowledge may take a second round to get past them.
//   It travels both ways: where the links between hosts are down, those of a host, whose places are
//   side by side, still hear of one another.
// - A rank that leaves or gives up tells its neighbors in all its sets, and the ranks that have
//   asked, since they wait for a message from it. Those that wait for it give up in turn and tell
//   theirs. The first rank known to have given up is named to the neighbors in any case.
//
// A rank may leave as soon as its own part in a collective is over, when others are still at it.
// These messages therefore say how far the rank has come in each process set, and a rank that owes
// nothing may leave without an error.

#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/shared_segment.h"
#include "engine/status.h"
#include "engine/topology.h"
#include "links/link.h"

namespace ringar {

class Peers {
 public:
  // `generation`: of this start of the job. Control messages of another one may still be under way.
  Peers(Link& link, const Topology& topology, const SharedSegment* segment, int generation);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // All of these may be called by any thread.

  // Reads the control messages that have come.
  Status poll();

  // Adds this rank's neighbors in a process set to those who hear of its end.
  void add_neighbors(const std::vector<int>& members);

  // Tells the neighbors 2^hop places before and behind in the set that this rank waits there;
  // without a set, the one rank that it waits for. Returns whether there is a neighbor at the next
  // hop.
  bool waiting(int set, uint64_t sequence, const std::vector<int>& members, int hop);
  void gave_up(const std::string& why);
  void left();

  // Notes that this rank has done its part in the collectives of a set up to here.
  void finished(int slot, int set, uint64_t collectives);

  // In place of a sequence: whether a rank has died or given up, whatever it had done by then.
  static constexpr uint64_t kLossOnly = UINT64_MAX;
  // Why a rank will never do its part in collective `sequence` of `set`, or "".
  std::string trouble(int job_rank, int set, uint64_t sequence) const;
  // The transfers of this rank that are not done, in words: for the error of a wait that was long.
  std::string open_transfers() const;
  // Whether the rank at a place of the set is known to wait there, or in a later collective.
  bool waits(size_t place, int set, uint64_t sequence) const;

 private:
  static constexpr int kMaxSets = 64;
  static constexpr size_t kWhyBytes = 1000;

  enum Kind : uint32_t { kWaiting, kGaveUp, kLeft };
  struct Progress {
    int64_t set = -1;
    uint64_t collectives = 0;
  };
  // Followed by `bytes` bytes: the places of those that wait, a bit each; or the reason, in words.
  struct ControlMessage {
    Kind kind = kWaiting;
    int32_t generation = 0;
    int64_t rank = 0;                  // of which it tells
    int64_t set = -1;                  // in which it waits
    uint64_t sequence = 0;             // the collective of that set
    Progress finished[kMaxSets] = {};  // by slot
    uint64_t bytes = 0;
  };
  struct End {
    ControlMessage message;
    std::string why;
  };
  // The collective that each place of a set waits in, as far as is known, plus 1.
  using Waiters = std::vector<uint64_t>;
  struct Sending {
    std::string bytes;
    std::vector<int> handles;
  };

  // These are called with the lock held.
  Status expect();
  Status hear_all();
  void hear(int from, const ControlMessage& message, const std::string& rest);
  void merge(int64_t set, uint64_t sequence, const std::string& places);
  Status let_go_of_sent();
  void send(const std::string& bytes, const std::set<int>& to);
  std::string end_message(Kind kind, const std::string& why) const;
  static uint64_t finished_by(const ControlMessage& message, int set);

  mutable std::mutex mutex_;
  Link& link_;
  const Topology& topology_;
  const SharedSegment* const segment_;  // null where this rank is alone on its host
  const int generation_;
  std::set<int> audience_;  // who is to hear of this rank's end
  std::map<int, End> ends_;
  std::map<int64_t, Waiters> waiters_;  // by set
  std::vector<Progress> finished_;
  std::vector<std::byte> incoming_;
  int expecting_ = -1;          // the handle of incoming_
  std::string own_end_;         // the message, once it is told
  bool knows_failure_ = false;  // and has told of it
  std::list<Sending> sending_;
};

}  // namespace ringar
