#include "engine/window.h"

#include <utility>

#include "engine/timeline.h"

namespace ringar {
namespace {

std::string text(int64_t number) {
  return std::to_string(number);
}

const char* name_of(Access kind) {
  switch (kind) {
    case Access::kGet:
      return "get";
    case Access::kPut:
      return "put";
    case Access::kAdd:
    case Access::kAtomicAdd:
    case Access::kRacyAdd:
      return "accumulate";
    case Access::kFetchAdd:
      return "fetch_add";
    case Access::kVersions:
      return "version";
  }
  return "";
}

}  // namespace

Window::Window(const World& world, int process_set, std::string name, const WindowLayout& layout,
               std::vector<Member> members)
    : world_(world),
      rank_(world.topology.rank),
      process_set_(process_set),
      name_(std::move(name)),
      layout_(layout),
      members_(std::move(members)),
      parts_(members_.size()),
      look_at_(members_.size()) {
  const Patience& patience = *this;
  for (size_t i = 0; i < members_.size(); ++i)
    if (members_[i].memory)
      parts_[i].emplace(members_[i].memory->data(), members_[i].place.length, layout, rank_,
                        world.timeouts, world.past_caches_bytes, patience);
}

std::byte* Window::local() const {
  for (size_t i = 0; i < members_.size(); ++i)
    if (members_[i].rank == rank_) return parts_[i]->elements();
  return nullptr;
}

std::string Window::who(Access kind) const {
  return "rank " + text(rank_) + " | " + name_of(kind) + " in window \"" + name_ + "\": ";
}

std::string Window::refusal(int rank, const WindowAccess& access) const {
  const auto ranks = static_cast<int64_t>(members_.size());
  if (closed_) return "expected an open window, received one that was closed";
  if (rank < 0 || rank >= ranks)
    return "expected a rank of the process set from 0 to " + text(ranks - 1) + ", received " +
           text(rank);
  if (access.start < 0 || access.count < 0 || access.start > length(rank) - access.count)
    return "expected elements among the " + text(length(rank)) + " of rank " + text(rank) +
           ", received " + text(access.count) + " from " + text(access.start) + " on";
  const std::string why = layout_.refusal(access.kind);
  return why.empty() ? "" : why + ", received a window of " + std::string(name_of(layout_.dtype));
}

Status Window::access(int rank, const WindowAccess& access) {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const std::string why = refusal(rank, access);
  if (!why.empty()) return {RINGAR_MISMATCH, who(access.kind) + why};
  Status status = lost(rank);
  if (status.ok()) status = parts_[static_cast<size_t>(rank)]->access(access);
  return status.ok() ? status : Status(status.code(), who(access.kind) + status.message());
}

// The part of a rank that has ended could still be read, but nobody looks after it any longer.
Status Window::lost(int rank) {
  const int job_rank = members_[static_cast<size_t>(rank)].rank;
  if (job_rank == rank_) return {};
  std::atomic<int64_t>& look_at = look_at_[static_cast<size_t>(rank)];
  const int64_t now = monotonic_ns();
  if (now < look_at.load(std::memory_order_relaxed)) return {};
  const Topology& topology = world_.topology;
  const std::string why = world_.segment->absence(topology.segment_place(job_rank));
  if (!why.empty())
    return {RINGAR_PEER_LOST, "expected rank " + text(job_rank) + " to be there, but " + why};
  look_at.store(now + static_cast<int64_t>(Rest::kCheckEvery * 1e9), std::memory_order_relaxed);
  return {};
}

Status Window::look(int holder, double seconds) const {
  if (seconds < Rest::kCheckEvery) return {};
  const Timeouts& timeouts = world_.timeouts;
  if (timeouts.stop->load()) return {RINGAR_NOT_INITIALIZED, "ringar was shut down meanwhile"};
  const Topology& topology = world_.topology;
  const std::string why =
      holder == rank_ ? "" : world_.segment->absence(topology.segment_place(holder));
  if (!why.empty())
    return {RINGAR_PEER_LOST,
            "expected rank " + text(holder) + " to end its write to the same chunk, but " + why};
  if (seconds < timeouts.deadline) return {};
  return {RINGAR_DEADLINE, "expected rank " + text(holder) +
                               " to end its write to the same chunk within the deadline of " +
                               text_of_seconds(timeouts.deadline) +
                               ". If it is only slow, raise the deadline "
                               "(ringar.init(deadline=...), RINGAR_DEADLINE or ringarrun "
                               "--deadline)."};
}

bool Window::close() {
  const std::lock_guard<std::shared_mutex> lock(mutex_);
  return !std::exchange(closed_, true);
}

}  // namespace ringar
