#include "engine/vigil.h"

#include <cstdio>

#include "engine/warn.h"

namespace ringar {
namespace {

// Seconds. Ranks that wait look for notices as often, and so pass on what they know by now.
constexpr double kBetweenHops = 0.02;

Status lost(const Current& current, const std::string& why) {
  const bool one = is_message(current.signature.collective);
  return {RINGAR_PEER_LOST, std::string("expected ") + (one ? "the other rank" : "all ranks") +
                                " to take part, but " + why};
}

}  // namespace

std::string text_of_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

Vigil::Vigil(const Patience& patience, const Current& current)
    : patience_(patience),
      current_(current),
      start_(Clock::now()),
      warn_at_(patience.stall_warning) {}

double Vigil::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

Status Vigil::look(const Text& trouble, const Text& whom) {
  const double waited = seconds();
  look_at_ = waited + Rest::kCheckEvery;
  const std::string why = trouble();
  if (!why.empty()) return lost(current_, why);
  if (current_.peers) RINGAR_RETURN_IF_ERROR(look_beyond_the_host());
  if (is_stopping())
    return {RINGAR_PEER_LOST,
            "this rank shut ringar down before rank " + late_ranks(whom) + " took part"};
  if (waited > patience_.deadline)
    return {RINGAR_DEADLINE,
            "expected every rank within the deadline of " + text_of_seconds(patience_.deadline) +
                ", still waiting for rank " + late_ranks(whom) +
                ". If it is only slow, raise the deadline (ringar.init(deadline=...), "
                "RINGAR_DEADLINE or ringarrun --deadline)."};
  if (waited > warn_at_) {
    warn(current_.prefix() + "has waited " + text_of_seconds(waited) + " for rank " +
         late_ranks(whom));
    warn_at_ *= 2;
  }
  return {};
}

Status Vigil::look_beyond_the_host() {
  Peers& peers = *current_.peers;
  RINGAR_RETURN_IF_ERROR(peers.poll());
  for (int rank : current_.members) {
    const std::string why = peers.trouble(rank, current_.set_id, current_.sequence());
    if (!why.empty()) return lost(current_, why);
  }
  const double waited = seconds();
  if (current_.sequence() == Peers::kLossOnly || waited < tell_at_) return {};
  if (peers.waiting(current_.set_id, current_.sequence(), current_.members, hop_++)) {
    tell_at_ = waited + kBetweenHops;
  } else {
    hop_ = 0;
    tell_at_ = round_at_ *= 2;
  }
  return {};
}

// With several hosts, those that have not said that they wait in this collective, too.
std::string Vigil::late_ranks(const Text& whom) const {
  if (!current_.peers || current_.sequence() == Peers::kLossOnly) return whom();
  std::string late;
  for (size_t i = 0; i < current_.members.size(); ++i) {
    const int rank = current_.members[i];
    if (rank != current_.rank && !current_.peers->waits(i, current_.set_id, current_.sequence()))
      late += (late.empty() ? "" : ", ") + std::to_string(rank);
  }
  return late.empty() ? whom() : late;
}

}  // namespace ringar
