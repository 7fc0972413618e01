#include "engine/watchdog.h"

#include <algorithm>
#include <cstdio>

#include "engine/warn.h"

namespace ringar {
namespace {

// Seconds. Ranks that wait look for control messages as often, and so pass on what they know by
// now.
constexpr double kBetweenHops = 0.02;

// This part of the deadline is a long wait.
constexpr double kNear = 0.5;

Status loss(const OpState& op_state, const std::string& why) {
  const bool is_to_peer = is_message(op_state.signature.collective);
  return {RINGAR_PEER_LOST, std::string("expected ") +
                                (is_to_peer ? "the other rank" : "all ranks") +
                                " to take part, but " + why};
}

}  // namespace

std::string text_of_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

Status trouble_beyond_the_host(const OpState& op_state) {
  Peers& peers = *op_state.peers;
  RINGAR_RETURN_IF_ERROR(peers.poll());
  for (int rank : op_state.members) {
    const std::string why = peers.trouble(rank, op_state.set_id, op_state.sequence());
    if (!why.empty()) return loss(op_state, why);
  }
  return {};
}

Watchdog::Watchdog(const Timeouts& timeouts, const OpState& op_state)
    : timeouts_(timeouts), op_state_(op_state), warn_at_(timeouts.stall_warning) {}

// A wait that was long ends with what this rank has open, also where another rank's deadline ends
// it: whether the two ends of a transfer agree shows where it is stuck.
Status Watchdog::look(const Text& trouble, const Text& whom) {
  Status status = look_at_all(trouble, whom);
  if (status.ok() || !op_state_.peers || !is_long()) return status;
  return {status.code(), status.message() + " " + where()};
}

// The number tells which of two ranks is ahead.
std::string Watchdog::where() const {
  const std::string number = std::to_string(op_state_.sequence());
  const std::string set = std::to_string(op_state_.set_id);
  const bool in_set = op_state_.set_id >= 0 && op_state_.sequence() != Peers::kLossOnly;
  const std::string place = "Collective " + number + " of process set " + set + ". ";
  return (in_set ? place : "") + op_state_.peers->open_transfers();
}

bool Watchdog::is_long() {
  return seconds() > std::min(timeouts_.stall_warning, kNear * timeouts_.deadline);
}

Status Watchdog::look_at_all(const Text& trouble, const Text& whom) {
  const double waited = seconds();
  look_at_ = waited + Rest::kCheckEvery;
  const std::string why = trouble();
  if (!why.empty()) return loss(op_state_, why);
  if (op_state_.peers) RINGAR_RETURN_IF_ERROR(look_beyond_the_host());
  if (is_stopping())
    return {RINGAR_PEER_LOST,
            "this rank shut ringar down before rank " + late_ranks(whom) + " took part"};
  if (waited > timeouts_.deadline)
    return {RINGAR_DEADLINE,
            "expected every rank within the deadline of " + text_of_seconds(timeouts_.deadline) +
                ", still waiting for rank " + late_ranks(whom) +
                ". If it is only slow, raise the deadline (ringar.init(deadline=...), "
                "RINGAR_DEADLINE or ringarrun --deadline)."};
  if (waited > warn_at_) {
    const std::string open = op_state_.peers ? ". " + where() : "";
    warn(op_state_.prefix() + "has waited " + text_of_seconds(waited) + " for rank " +
         late_ranks(whom) + open);
    warn_at_ *= 2;
  }
  return {};
}

Status Watchdog::look_beyond_the_host() {
  RINGAR_RETURN_IF_ERROR(trouble_beyond_the_host(op_state_));
  Peers& peers = *op_state_.peers;
  const double waited = seconds();
  if (op_state_.sequence() == Peers::kLossOnly || waited < tell_at_) return {};
  if (peers.waiting(op_state_.set_id, op_state_.sequence(), op_state_.members, hop_++)) {
    tell_at_ = waited + kBetweenHops;
  } else {
    hop_ = 0;
    tell_at_ = round_at_ *= 2;
  }
  return {};
}

// With several hosts, those that have not said that they wait in this collective, too.
std::string Watchdog::late_ranks(const Text& whom) const {
  if (!op_state_.peers || op_state_.sequence() == Peers::kLossOnly) return whom();
  std::string ranks;
  for (size_t i = 0; i < op_state_.members.size(); ++i) {
    const int rank = op_state_.members[i];
    if (rank != op_state_.rank &&
        !op_state_.peers->waits(i, op_state_.set_id, op_state_.sequence()))
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return ranks.empty() ? whom() : ranks;
}

}  // namespace ringar
