#include "engine/window.h"

#include <utility>

#include "engine/timeline.h"

namespace ringar {
namespace {

constexpr auto kLookEvery = static_cast<int64_t>(Rest::kCheckEvery * 1e9);

const char* name_of(const WindowAccess& access) {
  switch (access.kind) {
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

const char* name_of(const WindowRows& access) {
  return access.moves() ? "update" : access.kind == Access::kGet ? "gather" : "scatter_add";
}

}  // namespace

Window::Window(const World& world, std::shared_ptr<WindowService> service, int process_set,
               std::string name, const WindowLayout& layout, std::vector<Member> members)
    : world_(world),
      service_(std::move(service)),
      rank_(world.topology.rank),
      process_set_(process_set),
      name_(std::move(name)),
      layout_(layout),
      members_(std::move(members)),
      parts_(members_.size()),
      look_at_(members_.size()) {
  const Patience& patience = *this;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (member.rank == rank_) own_place_ = i;
    if (member.memory)
      parts_[i].emplace(member.memory->data(), member.place.length, layout, rank_, world.timeouts,
                        world.past_caches_bytes, patience);
  }
  if (service_) service_->add(members_[own_place_].place.number, *this, layout);
}

Window::~Window() {
  end_service();
}

void Window::end_service() {
  if (service_) service_->remove(members_[own_place_].place.number);
}

std::byte* Window::local() const {
  return parts_[own_place_]->elements();
}

std::string Window::who(const char* name) const {
  return "rank " + text(rank_) + " | " + name + " in window \"" + name_ + "\": ";
}

std::string Window::refusal_of_rank(int rank) const {
  const auto ranks = static_cast<int64_t>(members_.size());
  if (rank >= 0 && rank < ranks) return "";
  return "expected a rank of the process set from 0 to " + text(ranks - 1) + ", received " +
         text(rank);
}

std::string Window::refusal(int rank, const WindowAccess& access) const {
  if (std::string why = refusal_of_rank(rank); !why.empty()) return why;
  if (access.start < 0 || access.count < 0 || access.start > length(rank) - access.count)
    return "expected elements among the " + text(length(rank)) + " of rank " + text(rank) +
           ", received " + text(access.count) + " from " + text(access.start) + " on";
  const std::string why = layout_.refusal(access.kind);
  return why.empty() ? "" : why + ", received a window of " + std::string(name_of(layout_.dtype));
}

std::string Window::refusal(int rank, const WindowRows& access) const {
  if (std::string why = refusal_of_rank(rank); !why.empty()) return why;
  if (access.width < 1 || access.column < 0 || access.width > access.stride - access.column)
    return "expected rows of at least one element, received a width of " + text(access.width);
  const int64_t rows = length(rank) / access.stride;
  for (int64_t i = 0; i < access.count; ++i)
    if (access.rows[i] < 0 || access.rows[i] >= rows)
      return "expected rows among the " + text(rows) + " of width " + text(access.stride) +
             " of rank " + text(rank) + ", received row " + text(access.rows[i]) + " at index " +
             text(i);
  const std::string why = layout_.refusal(access);
  return why.empty() ? "" : why + ", received a window of " + std::string(name_of(layout_.dtype));
}

Status Window::access(int rank, const WindowAccess& access) {
  return access_any(rank, access);
}

Status Window::access(int rank, const WindowRows& access) {
  return access_any(rank, access);
}

template <typename Any>
Status Window::access_any(int rank, const Any& access) {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const std::string why =
      closed_ ? "expected an open window, received one that was closed" : refusal(rank, access);
  if (!why.empty()) return {RINGAR_MISMATCH, who(name_of(access)) + why};
  const Status status = access_part(rank, access);
  return status.ok() ? status : Status(status.code(), who(name_of(access)) + status.message());
}

// The part of a rank that has died could still be read, but nobody looks after it any longer. That
// of a rank that leaves in the middle of an access may have been given back.
template <typename Any>
Status Window::access_part(int rank, const Any& access) {
  const auto place = static_cast<size_t>(rank);
  const Member& member = members_[place];
  if (!member.memory) return service_->access(member.rank, member.place.number, layout_, access);
  if (place == own_place_) return parts_[place]->access(access);
  const int64_t now = monotonic_ns();
  std::atomic<int64_t>& look_at = look_at_[place];
  const bool looks = now >= look_at.load(std::memory_order_relaxed);
  if (looks) look_at.store(now + kLookEvery, std::memory_order_relaxed);
  if (looks) RINGAR_RETURN_IF_ERROR(loss(member, true));
  RINGAR_RETURN_IF_ERROR(parts_[place]->access(access));
  return loss(member, false);
}

Status Window::loss(const Member& member, bool looks) {
  const int place = world_.topology.segment_place(member.rank);
  const std::string why = looks ? world_.segment->absence(place) : world_.segment->departure(place);
  if (why.empty()) return {};
  return {RINGAR_PEER_LOST, "expected rank " + text(member.rank) + " to be there, but " + why};
}

Status Window::serve(const WindowAccess& access) {
  return serve_any(access);
}

Status Window::serve(const WindowRows& access) {
  return serve_any(access);
}

template <typename Any>
Status Window::serve_any(const Any& access) {
  const std::string why = refusal(static_cast<int>(own_place_), access);
  return why.empty() ? parts_[own_place_]->access(access) : Status(RINGAR_MISMATCH, why);
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
