#include "engine/link_group.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace ringar {
namespace {

// A rank sleeps for a part of the time that it has waited, or usually waits, so that it wakes
// seldom where the link is slow, and comes late by no more than that part.
constexpr double kNap = 1.0 / 8, kUsualNap = 1.0 / 4, kLongestNap = 1e-3;
constexpr double kPatientSpin = 20e-6;

}  // namespace

LinkGroup::LinkGroup(std::vector<int> job_ranks, int rank, Link& link, const Patience& patience,
                     Current& current)
    : job_ranks_(std::move(job_ranks)),
      rank_(rank),
      link_(link),
      patience_(patience),
      current_(current) {}

Status LinkGroup::send(int to, int channel, const std::byte* data, size_t bytes, int* ticket) {
  return link_.send(job_rank(to), tag(channel), data, bytes, ticket);
}

Status LinkGroup::receive(int from, int channel, std::byte* data, size_t bytes, int* ticket,
                          Link::Length length) {
  return link_.receive(job_rank(from), tag(channel), data, bytes, length, ticket);
}

Status LinkGroup::poll(int* ticket, bool* moved) {
  if (*ticket < 0) return {};
  bool done = false;
  RINGAR_RETURN_IF_ERROR(link_.poll(*ticket, &done));
  if (done) {
    *ticket = -1;
    *moved = true;
  }
  return {};
}

Status LinkGroup::finish(Haste haste, int* tickets, size_t count) {
  return until_done(haste, [&](bool* moved, bool* done) -> Status {
    *done = true;
    for (size_t i = 0; i < count; ++i) {
      RINGAR_RETURN_IF_ERROR(poll(&tickets[i], moved));
      *done &= tickets[i] < 0;
    }
    return {};
  });
}

// Who yields to a thread that computes comes back after its time slice, some milliseconds; who has
// slept comes back at once.
Status LinkGroup::rest(Haste haste, Vigil& vigil, double* check_at) {
  const double waited = vigil.seconds();
  if (haste == Haste::kEager && vigil.is_early()) {
    sched_yield();
    return {};
  }
  if (waited < kPatientSpin) {
    relax();
    return {};
  }
  const double usual = haste == Haste::kPatient ? usual_wait_ : 0;
  std::this_thread::sleep_for(std::chrono::duration<double>(
      std::min(std::max(kNap * waited, kUsualNap * usual), kLongestNap)));
  if (waited < *check_at) return {};
  *check_at = waited + kCheckEvery;
  const auto nobody = [] { return std::string(); };
  const auto link = [] { return std::string("none: all have come, but not what they have sent"); };
  return vigil.check(nobody, link);
}

}  // namespace ringar
