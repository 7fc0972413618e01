#include "engine/link_group.h"

namespace ringar {

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

// A patient rank sleeps at first for a part of the time that it usually waits.
Rest LinkGroup::rest(Haste haste) const {
  if (haste == Haste::kEager) return {patience_.spin()};
  constexpr double kSpin = 20e-6;
  return {kSpin, usual_wait_ / 4};
}

Status LinkGroup::check(Vigil& vigil) {
  const auto nobody = [] { return std::string(); };
  const auto link = [] { return std::string("none: all have come, but not what they have sent"); };
  return vigil.check(nobody, link);
}

}  // namespace ringar
