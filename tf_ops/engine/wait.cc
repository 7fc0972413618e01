#include "engine/wait.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace ringar {
namespace {

constexpr double kPart = 1.0 / 8;  // of the time waited
// A yield that took so long was to a thread that computes. The next waits sleep at once: a few at
// first, twice as many each time that others are found to compute again, and half as many after a
// yield that came back soon. A thread that computes now and then should cost little: to be woken
// takes longer than to poll.
constexpr int64_t kSliceOfOthers = 500'000;  // nanoseconds
constexpr int64_t kLongestPause =
    1'000'000'000;  // between two questions to a stopwatch, in nanoseconds
constexpr int kFewestSleeps = 8, kMostSleeps = 512;

thread_local int sleeps_at_once = 0;  // waits of this thread that are still to come
thread_local int last_sleeps = 0;     // how many they were, or would be

}  // namespace

double Rest::after(double waited) const {
  return std::min(std::max(kPart * waited, shortest), longest);
}

Rests::Rests(const Rest& rest)
    : rest_(rest), begin_(monotonic_ns()), sleeps_(rest.spin <= 0 || sleeps_at_once > 0) {
  if (rest.spin > 0 && sleeps_at_once > 0) --sleeps_at_once;
}

bool Rests::spin() {
  if (sleeps_) return false;
  relax();
  if (++looks_ < rest_.looks) return true;
  looks_ = 0;
  const int64_t before = monotonic_ns();
  sched_yield();
  const int64_t after = monotonic_ns();
  if (after - before > kSliceOfOthers) {
    last_sleeps = std::clamp(2 * last_sleeps, kFewestSleeps, kMostSleeps);
    sleeps_at_once = last_sleeps;
  } else if (!yielded_) {
    last_sleeps /= 2;
  }
  yielded_ = true;
  sleeps_ = sleeps_at_once > 0 || static_cast<double>(after - begin_) > rest_.spin * 1e9;
  return true;
}

double Rests::seconds() const {
  return rest_.after(static_cast<double>(monotonic_ns() - begin_) * 1e-9);
}

double Stopwatch::seconds() {
  const int64_t now = monotonic_ns();
  begin_ += std::max<int64_t>(now - last_query_ - kLongestPause, 0);
  last_query_ = now;
  return static_cast<double>(now - begin_) * 1e-9;
}

void sleep_on(Flag* flag, uint64_t snapshot, double seconds) {
  if (flag)
    flag->sleep(snapshot, static_cast<long>(seconds * 1e9));
  else
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace ringar
