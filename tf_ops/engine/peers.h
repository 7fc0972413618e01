// What this rank knows of the others when there are several hosts: who waits, who has left or given
// up, who has died.
//
// Death is seen on the dead rank's host alone (engine/arena.h). All else travels as notices, small
// messages that nobody answers: a rank that leaves or gives up tells all others, and so does one
// that has waited for a while in a collective. Whoever is waited for is thus known: it is among
// those that have not said that they wait, too. Notices are read while a rank waits.
//
// A rank may leave as soon as its own part in a collective is over, when others are still at it.
// Notices therefore say how far the rank has come in each process set, and nobody minds the leaving
// of a rank that owes nothing.

#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/arena.h"
#include "engine/status.h"
#include "engine/topology.h"
#include "links/link.h"

namespace ringar {

class Peers {
 public:
  // `generation`: of this start of the job. Notices of another one may still be under way.
  Peers(Link& link, const Topology& topology, const Arena* arena, int generation);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // All of these may be called by any thread.

  // Reads the notices that have come.
  Status poll();

  // Tells the others.
  void waiting(int set, uint64_t sequence);
  void gave_up(const std::string& why);
  void left();

  // Notes that this rank has done its part in the collectives of a set up to here.
  void finished(int slot, int set, uint64_t collectives);

  // In place of a sequence: whether a rank has died or given up, whatever it had done by then.
  static constexpr uint64_t kLossOnly = UINT64_MAX;
  // Why a rank will never do its part in collective `sequence` of `set`, or "".
  std::string trouble(int job_rank, int set, uint64_t sequence) const;
  // Whether it has said that it waits there.
  bool waits(int job_rank, int set, uint64_t sequence) const;

 private:
  static constexpr int kMaxSets = 64;

  enum Kind : uint32_t { kRunning, kWaiting, kGaveUp, kLeft };
  struct Progress {
    int64_t set = -1;
    uint64_t collectives = 0;
  };
  struct Notice {
    Kind kind = kRunning;
    int32_t generation = 0;
    int64_t set = -1;                  // in which it waits
    uint64_t sequence = 0;             // the collective of that set
    Progress finished[kMaxSets] = {};  // by slot
    char why[1000] = {};
  };
  struct Sending {
    Notice notice;
    std::vector<int> tickets;
  };

  // These are called with the lock held.
  Status expect();
  Status let_go_of_sent();
  void tell_all(Kind kind, int set, uint64_t sequence, const std::string& why);
  static uint64_t finished_by(const Notice& notice, int set);

  mutable std::mutex mutex_;
  Link& link_;
  const Topology& topology_;
  const Arena* const arena_;  // null where this rank is alone on its host
  const int generation_;
  std::vector<Notice> known_;
  std::vector<Progress> finished_;
  std::unique_ptr<Notice> incoming_ = std::make_unique<Notice>();
  int expecting_ = -1;  // the ticket of incoming_
  bool told_the_end_ = false;
  std::list<Sending> sending_;
};

}  // namespace ringar
