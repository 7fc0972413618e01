#include "engine/link_group.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace ringar {
namespace {

// At 10 Gbit/s 50 us are 62 KB: less than what is under way.
constexpr int kLongestNap = 50;
constexpr double kCheckEvery = 0.02;

}  // namespace

LinkGroup::LinkGroup(std::vector<int> job_ranks, int rank, Link& link, const Patience& patience,
                     Current& current)
    : job_ranks_(std::move(job_ranks)),
      rank_(rank),
      link_(link),
      patience_(patience),
      current_(current) {}

// Tag 0 is that of notices.
Status LinkGroup::send(int to, int channel, const std::byte* data, size_t bytes, int* ticket) {
  return link_.send(job_rank(to), 1 + current_.set_id * kChannels + channel, data, bytes, ticket);
}

Status LinkGroup::receive(int from, int channel, std::byte* data, size_t bytes, int* ticket) {
  return link_.receive(job_rank(from), 1 + current_.set_id * kChannels + channel, data, bytes,
                       ticket);
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

Status LinkGroup::finish(int* tickets, size_t count) {
  return until_done([&](bool* moved, bool* done) -> Status {
    *done = true;
    for (size_t i = 0; i < count; ++i) {
      RINGAR_RETURN_IF_ERROR(poll(&tickets[i], moved));
      *done &= tickets[i] < 0;
    }
    return {};
  });
}

Status LinkGroup::rest(Vigil& vigil, Pace& pace) {
  if (vigil.is_early()) {
    relax();
    sched_yield();
    return {};
  }
  pace.nap_microseconds = std::min(kLongestNap, pace.nap_microseconds + 5);
  std::this_thread::sleep_for(std::chrono::microseconds(pace.nap_microseconds));
  const double waited = vigil.seconds();
  if (waited < pace.check_at) return {};
  pace.check_at = waited + kCheckEvery;
  const auto nobody = [] { return std::string(); };
  const auto link = [] { return std::string("none: all have come, but not what they have sent"); };
  return vigil.check(nobody, link);
}

}  // namespace ringar
