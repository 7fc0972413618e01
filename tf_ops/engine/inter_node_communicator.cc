#include "engine/inter_node_communicator.h"

namespace ringar {

InterNodeCommunicator::InterNodeCommunicator(std::vector<int> job_ranks, int rank,
                                             const World& world, OpState& op_state)
    : job_ranks_(std::move(job_ranks)),
      rank_(rank),
      world_(world),
      link_(*world.link),
      op_state_(op_state) {}

Status InterNodeCommunicator::send(int to, int channel, const std::byte* data, size_t bytes,
                                   int* handle) {
  return link_.send(job_rank(to), tag(channel), data, bytes, handle);
}

Status InterNodeCommunicator::receive(int from, int channel, std::byte* data, size_t bytes,
                                      int* handle, Link::Length length) {
  return link_.receive(job_rank(from), tag(channel), data, bytes, length, handle);
}

Status InterNodeCommunicator::poll(int* handle, bool* moved) {
  if (*handle < 0) return {};
  bool done = false;
  RINGAR_RETURN_IF_ERROR(link_.poll(*handle, &done));
  if (done) {
    *handle = -1;
    *moved = true;
  }
  return {};
}

Status InterNodeCommunicator::finish(WaitPolicy policy, int* handles, size_t count) {
  return until_done(policy, [&](bool* moved, bool* done) -> Status {
    *done = true;
    for (size_t i = 0; i < count; ++i) {
      RINGAR_RETURN_IF_ERROR(poll(&handles[i], moved));
      *done &= handles[i] < 0;
    }
    return {};
  });
}

// A patient rank sleeps at first for a part of the time that it usually waits.
Rest InterNodeCommunicator::rest(WaitPolicy policy) const {
  if (policy == WaitPolicy::kEager) return {world_.timeouts.spin()};
  constexpr double kSpin = 20e-6;
  return {kSpin, usual_wait_ / 4};
}

Status InterNodeCommunicator::check(Watchdog& watchdog) {
  const auto nobody = [] { return std::string(); };
  const auto link = [] { return std::string("none: all have come, but not their messages"); };
  return watchdog.check(nobody, link);
}

}  // namespace ringar
