// One wait for other ranks: how long it has lasted, and what ends it but its end.

#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "engine/current.h"
#include "engine/status.h"

namespace ringar {

struct Patience {
  double deadline = 600;
  double stall_warning = 30;
  int spin_microseconds = 50;               // before sleeping; 0 where ranks share cores
  const std::atomic<bool>* stop = nullptr;  // set when this rank shuts down
};

// A duration in words: "0.3 s".
std::string text_of_seconds(double seconds);

// Leaves the processor to the other hardware thread of the core for a moment.
void relax();

class Vigil {
 public:
  using Text = std::function<std::string()>;

  Vigil(const Patience& patience, const Current& current);

  // Whether it has only begun, so that looking again is cheaper than to sleep.
  bool is_early() const { return Clock::now() < spin_until_; }
  double seconds() const;

  // To be called now and then. `trouble` tells why a rank of this host will never come, or "";
  // `whom` lists those of its ranks that have not come. What there is to know of other hosts is
  // added here.
  Status check(const Text& trouble, const Text& whom);

 private:
  using Clock = std::chrono::steady_clock;

  Status look_beyond_the_host();
  std::string late_ranks(const Text& whom) const;

  const Patience& patience_;
  const Current& current_;
  const Clock::time_point start_, spin_until_;
  double warn_at_;
  // Neighbors are told that this rank waits, one after the other, in rounds.
  double round_at_ = 1, tell_at_ = 1;  // seconds
  int hop_ = 0;                        // of the next one
};

}  // namespace ringar
