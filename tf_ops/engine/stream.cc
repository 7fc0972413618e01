#include "engine/stream.h"

#include "engine/timeline.h"
#include "engine/traffic.h"

namespace ringar {

Stream::Stream(const World& world, const Key& key, std::unique_ptr<Channel> channel)
    : world_(world),
      peer_{key.peer},
      channel_(std::move(channel)),
      current_{world.topology.rank, kNoSet, -1, peer_, world.peers} {}

Status Stream::advance(Request& request, bool* done) {
  RINGAR_RETURN_IF_ERROR(broken_);
  const int64_t begin = Timeline::instance().on() ? monotonic_ns() : 0;
  Status status = channel_->advance(request, done);
  if (status.ok() && !*done) {
    status = keep_waiting(request, done);
    if (status.ok() && !*done) return {};
  }
  vigil_.reset();
  lost_at_.reset();
  return note(request, begin, status);
}

// What a peer has done before it went is looked for once more, and for a while where it may still
// be on its way.
Status Stream::keep_waiting(Request& request, bool* done) {
  const Patience& patience = world_.patience;
  const bool stopping = patience.stop->load();
  if (!vigil_) {
    current_.signature = describe(request);
    vigil_.emplace(patience, current_);
  }
  const int peer = peer_[0];
  const auto trouble = [&] {
    const Topology& topology = world_.topology;
    return topology.is_here(peer) ? world_.arena->trouble(topology.arena_place(peer)) : "";
  };
  const Status status = vigil_->check(trouble, [&] { return std::to_string(peer); });
  if (status.ok() || status.code() != RINGAR_PEER_LOST || stopping) return status;
  RINGAR_RETURN_IF_ERROR(channel_->advance(request, done));
  const double waited = vigil_->seconds();
  if (!lost_at_) lost_at_ = waited;
  const bool grace = waited - *lost_at_ < channel_->grace();
  return *done || (grace && waited < patience.deadline) ? Status() : status;
}

Signature Stream::describe(const Request& request) const {
  Signature signature = Signature::of(request, "", channel_->number());
  signature.root = peer_[0];
  return signature;
}

// Writes down how a request has ended, and returns that as the user is to see it.
Status Stream::note(const Request& request, int64_t begin, const Status& status) {
  const bool sends = request.spec.collective == Collective::kSend;
  if (status.ok() && sends) Traffic::instance().add(request, 0, 0);
  if (begin > 0 && status.ok())
    Timeline::instance().message(request, describe(request).title(), begin);
  if (status.ok()) return status;
  current_.signature = describe(request);
  std::string text = current_.prefix();
  if (sends && status.code() == RINGAR_MISMATCH)
    text += "this one was not sent, since rank " + std::to_string(peer_[0]) +
            " has refused one before it: ";
  const Status failure(status.code(), text + status.message());
  if (status.code() != RINGAR_MISMATCH) broken_ = failure;
  return failure;
}

}  // namespace ringar
