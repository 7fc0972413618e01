#include "engine/message_stream.h"

#include "engine/timeline.h"
#include "engine/traffic.h"

namespace ringar {

MessageStream::MessageStream(const World& world, const Key& key, std::unique_ptr<Channel> channel)
    : world_(world),
      peer_{key.peer},
      channel_(std::move(channel)),
      op_state_{world.topology.rank, kNoSet, -1, peer_, world.peers} {}

Status MessageStream::advance(Request& request, bool* done) {
  RINGAR_RETURN_IF_ERROR(broken_);
  const int64_t begin = Timeline::instance().on() ? monotonic_ns() : 0;
  Status status = channel_->advance(request, done);
  if (status.ok() && !*done) {
    status = keep_waiting(request, done);
    if (status.ok() && !*done) return {};
  }
  watchdog_.reset();
  lost_at_.reset();
  return note(request, begin, status);
}

// Looks once more for messages that a peer sent before it left, and for a while where they may
// still be on their way.
Status MessageStream::keep_waiting(Request& request, bool* done) {
  const Timeouts& timeouts = world_.timeouts;
  const bool stopping = timeouts.stop->load();
  if (!watchdog_) {
    op_state_.signature = describe(request);
    watchdog_.emplace(timeouts, op_state_);
  }
  const int peer = peer_[0];
  const auto trouble = [&] {
    const Topology& topology = world_.topology;
    return topology.is_here(peer) ? world_.segment->trouble(topology.segment_place(peer)) : "";
  };
  const Status status = watchdog_->check(trouble, [&] { return std::to_string(peer); });
  if (status.ok() || status.code() != RINGAR_PEER_LOST || stopping) return status;
  RINGAR_RETURN_IF_ERROR(channel_->advance(request, done));
  const double waited = watchdog_->seconds();
  if (!lost_at_) lost_at_ = waited;
  const bool grace = waited - *lost_at_ < channel_->grace();
  return *done || (grace && waited < timeouts.deadline) ? Status() : status;
}

Signature MessageStream::describe(const Request& request) const {
  Signature signature = Signature::of(request, "", channel_->number());
  signature.root = peer_[0];
  return signature;
}

// Writes down how a request has ended, and returns that as the user is to see it.
Status MessageStream::note(const Request& request, int64_t begin, const Status& status) {
  const bool sends = request.spec.collective == Collective::kSend;
  if (status.ok() && sends) Traffic::instance().add(request, 0, 0);
  if (begin > 0 && status.ok())
    Timeline::instance().message(request, describe(request).title(), begin);
  if (status.ok()) return status;
  op_state_.signature = describe(request);
  std::string text = op_state_.prefix();
  if (sends && status.code() == RINGAR_MISMATCH)
    text += "this one was not sent, since rank " + std::to_string(peer_[0]) +
            " has refused one before it: ";
  const Status failure(status.code(), text + status.message());
  if (status.code() != RINGAR_MISMATCH) broken_ = failure;
  return failure;
}

}  // namespace ringar
