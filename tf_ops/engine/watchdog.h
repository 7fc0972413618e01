// One wait for other ranks: its duration, and the reasons that end it early. How a rank rests
// meanwhile: engine/wait.h.

#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "engine/op_state.h"
#include "engine/status.h"
#include "engine/wait.h"

namespace ringar {

struct Timeouts {
  double deadline = 600;
  double stall_warning = 30;
  int spin_microseconds = 50;               // before sleeping; 0 where ranks share cores
  const std::atomic<bool>* stop = nullptr;  // set when this rank shuts down

  double spin() const { return spin_microseconds * 1e-6; }
};

// A duration in words: "0.3 s".
std::string text_of_seconds(double seconds);

// Whether the ranks of other hosts have told why one of a set will not come.
Status trouble_beyond_the_host(const OpState& op_state);

class Watchdog {
 public:
  using Text = std::function<std::string()>;

  Watchdog(const Timeouts& timeouts, const OpState& op_state);

  double seconds() { return stopwatch_.seconds(); }

  // To be called at any time: it looks every 20 ms, and when this rank shuts down. `trouble` tells
  // why a rank of this host will never come, or ""; `whom` lists those of its ranks that have not
  // come. This adds the news of other hosts.
  template <typename Trouble, typename Whom>
  Status check(const Trouble& trouble, const Whom& whom) {
    return is_due() ? look(trouble, whom) : Status();
  }

 private:
  bool is_due() { return is_stopping() || seconds() >= look_at_; }
  Status look(const Text& trouble, const Text& whom);
  Status look_at_all(const Text& trouble, const Text& whom);
  bool is_stopping() const { return timeouts_.stop && timeouts_.stop->load(); }
  Status look_beyond_the_host();
  std::string late_ranks(const Text& whom) const;
  bool is_long();
  std::string where() const;

  const Timeouts& timeouts_;
  const OpState& op_state_;
  Stopwatch stopwatch_;
  double look_at_ = Rest::kCheckEvery, warn_at_;
  // Neighbors are told that this rank waits, one after the other, in rounds.
  double round_at_ = 1, tell_at_ = 1;  // seconds
  int hop_ = 0;                        // of the next one
};

}  // namespace ringar
