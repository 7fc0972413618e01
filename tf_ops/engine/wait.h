// How a rank waits for others: it looks, rests, and looks again.
//
// It polls for a moment, and yields now and then: a core that it shares with computing threads is
// theirs, too. Then it sleeps, until the owner of a flag wakes it or, where nobody does, for a part
// of the time that it has waited: so it wakes seldom, and comes late by no more than that part.
//
// A thread that yields to one that computes comes back after its time slice, some milliseconds; a
// sleeping thread is woken at once. A yield that took so long shows the thread that its core is
// busy: its next waits sleep at once, a few at first, more where the core stays busy.

#pragma once

#include <cstdint>

#include "engine/flag.h"
#include "engine/status.h"
#include "engine/timeline.h"

namespace ringar {

// Leaves the processor to the other hardware thread of the core for a moment.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The rests of a wait, in seconds.
struct Rest {
  static constexpr double kCheckEvery = 0.02;  // between looks after the health of other ranks

  double spin = 0;                          // for so long it polls before it sleeps
  double shortest = 20e-6, longest = 1e-3;  // sleeps; in between, a part of the time waited
  int looks = 1;                            // before it yields

  // For a wait that a flag ends, where looks are cheap: it wakes by itself only to look after
  // others.
  static constexpr Rest until_woken(double spin) { return {spin, kCheckEvery, kCheckEvery, 16}; }
  // GPUs wake nobody, and what they do is mostly short.
  static constexpr Rest for_gpu() { return {500e-6, 50e-6, 50e-6}; }

  double after(double waited) const;
};

// The rests of one wait, one after the other.
class Rests {
 public:
  explicit Rests(const Rest& rest);

  // False when it is time to sleep, for so many seconds.
  bool spin();
  double seconds() const;

 private:
  const Rest& rest_;
  const int64_t begin_;
  bool sleeps_;
  bool yielded_ = false;
  int looks_ = 0;
};

// The seconds that a wait has lasted, without those in which this process was stopped (Ctrl-Z): its
// deadline is not for them. Whoever waits asks every few milliseconds, so an answer that comes much
// later than the one before shows a stop.
class Stopwatch {
 public:
  double seconds();

 private:
  int64_t begin_ = monotonic_ns(), last_query_ = begin_;
};

// Until the flag is advanced, if there is one, and for at most so many seconds.
void sleep_on(Flag* flag, uint64_t snapshot, double seconds);

struct NoCheck {
  Status operator()() const { return {}; }
};

// Calls look(&done) until it sets done or fails. sleep(seconds) may end sooner. check() tells
// before each sleep why look() will never succeed, if so.
template <typename Sleep, typename Look, typename Check = NoCheck>
Status wait_with(const Rest& rest, Sleep sleep, Look look, Check check = {}) {
  Rests rests(rest);
  for (;;) {
    bool done = false;
    RINGAR_RETURN_IF_ERROR(look(&done));
    if (done) return {};
    if (rests.spin()) continue;
    RINGAR_RETURN_IF_ERROR(check());
    sleep(rests.seconds());
  }
}

// The same; `flag`, if there is one, is advanced by others after what makes look() succeed.
template <typename Look, typename Check = NoCheck>
Status wait_until(const Rest& rest, Flag* flag, Look look, Check check = {}) {
  uint64_t snapshot = 0;
  const auto look_since = [&](bool* done) {
    if (flag) snapshot = flag->load();
    return look(done);
  };
  return wait_with(rest, [&](double s) { sleep_on(flag, snapshot, s); }, look_since, check);
}

// How long a rank that leaves waits, in seconds, until others have taken what it has sent.
constexpr double kFarewell = 0.5;

// Waits for at most so many seconds; returns whether it is done.
template <typename IsDone>
bool wait_at_most(double seconds, const Rest& rest, IsDone is_done) {
  Stopwatch stopwatch;
  const auto look = [&](bool* done) {
    *done = is_done();
    return Status();
  };
  const auto check = [&] {
    const bool is_late = stopwatch.seconds() > seconds;
    return is_late ? Status(RINGAR_DEADLINE, "") : Status();
  };
  return wait_until(rest, nullptr, look, check).ok();
}

}  // namespace ringar
