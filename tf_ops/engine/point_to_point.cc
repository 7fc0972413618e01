#include "engine/point_to_point.h"

#include "engine/thread.h"
#include "engine/wait.h"

namespace ringar {
namespace {

constexpr Rest kForever{0, 3600, 3600};  // until somebody rings

// Where nobody rings, a rank has to look.
Rest rest(double spin, bool polls) {
  return polls ? Rest{spin} : Rest::until_woken(spin);
}

MessageStream::Key key_of(const Request& request, int peer) {
  return {request.spec.collective == Collective::kSend, peer, request.spec.tag};
}

}  // namespace

PointToPoint::PointToPoint(const World& world, int generation, Finish finish)
    : world_(world), generation_(generation), finish_(std::move(finish)) {}

// Nothing is mapped in a job that sends no messages.
void PointToPoint::open_doorbell() {
  const Topology& topology = world_.topology;
  if (!world_.segment || own_doorbell_) return;
  own_doorbell_.emplace(*world_.segment, topology.segment_place(topology.rank),
                        static_cast<int>(topology.ranks_here().size()));
}

PointToPoint::~PointToPoint() {
  stop();
}

MessageStream& PointToPoint::stream(const MessageStream::Key& key) {
  auto& stream = streams_[key];
  if (!stream) stream = std::make_unique<MessageStream>(world_, key, open(key));
  return *stream;
}

std::unique_ptr<Channel> PointToPoint::open(const MessageStream::Key& key) {
  const Topology& topology = world_.topology;
  if (!topology.is_here(key.peer)) {
    const LinkEnd end{world_.link, &link_memory_, topology.rank, key.peer, generation_, key.tag};
    return key.sends ? open_to_send(end) : open_to_receive(end);
  }
  const int me = topology.segment_place(topology.rank), other = topology.segment_place(key.peer);
  const int host_size = static_cast<int>(topology.ranks_here().size());
  if (!allocator_) allocator_.emplace(*world_.segment, me, host_size);
  if (key.sends)
    return open_to_send({world_.segment, host_size, me, other, topology.rank, key.peer, key.tag},
                        *allocator_);
  return open_to_receive({world_.segment, host_size, other, me, key.peer, topology.rank, key.tag});
}

void PointToPoint::start_thread() {
  if (!thread_.joinable()) thread_ = std::thread([this] { thread_main(); });
}

void PointToPoint::post(Request* request, int peer, const Status& refusal) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    RINGAR_CHECK(!is_stopped_);
    open_doorbell();
    if (refusal.ok())
      stream(key_of(*request, peer)).posted.push_back({request});
    else
      refused_.emplace_back(request, refusal);
    start_thread();
  }
  doorbell().add();
}

Status PointToPoint::run(Request& request, int peer) {
  Status status;
  bool done = false;
  MessageStream* own_stream = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_stopped_) return refusal_after_stop();
    open_doorbell();
    own_stream = &stream(key_of(request, peer));
    own_stream->posted.push_back({&request, &status, &done});
    if (own_stream->channel().polls()) start_thread();
    ++callers_;
  }
  const bool polls = own_stream->channel().polls();
  (void)wait_until(rest(world_.timeouts.spin(), polls), &doorbell(), [&](bool* over) -> Status {
    drive(*own_stream, &done);
    const std::lock_guard<std::mutex> lock(mutex_);
    *over = done;
    return {};
  });
  // The thread goes on with messages still on their way.
  if (polls) doorbell().add();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--callers_ == 0) out_.notify_all();
  return status;
}

// `caller_done`: the flag of the request that the caller waits for; other waiting threads are
// woken.
bool PointToPoint::drive(MessageStream& stream, const bool* caller_done) {
  bool moved = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stream.busy && !stream.posted.empty()) {
    const MessageStream::Posted posted = stream.posted.front();
    stream.busy = true;
    bool done = false;
    Status status = given_up_;
    if (status.ok()) {
      lock.unlock();
      status = stream.advance(*posted.request, &done);
      if (!status.ok() && status.code() != RINGAR_MISMATCH) tell_others(status);
      lock.lock();
    }
    stream.busy = false;
    if (status.ok() && !done) return moved;
    moved = true;
    stream.posted.pop_front();
    // Somebody must go on with the others if this thread does not come again.
    const bool ring = !stream.posted.empty() || (posted.done && posted.done != caller_done);
    if (posted.done) {
      *posted.status = status;
      *posted.done = true;
    } else {
      lock.unlock();
      finish_(posted.request, status);
      lock.lock();
    }
    if (ring) doorbell().add();
  }
  return moved;
}

void PointToPoint::tell_others(const Status& status) {
  is_broken_.store(true);
  if (world_.segment) world_.segment->give_up(status.message());
  if (world_.peers) world_.peers->gave_up(status.message());
}

bool PointToPoint::has(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, stream] : streams_)
    for (const MessageStream::Posted& posted : stream->posted)
      if (posted.request->ticket && posted.request->step == step) return true;
  return false;
}

void PointToPoint::forget(int peer, int tag) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_stopped_) return;
    open_doorbell();
    Channel& channel = stream({false, peer, tag}).channel();
    channel.forget();
    if (channel.polls()) start_thread();
  }
  doorbell().add();
}

void PointToPoint::give_up(const Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (given_up_.ok()) given_up_ = status;
  }
  tell_others(status);
  doorbell().add();
}

Status PointToPoint::refusal_after_stop() const {
  return {RINGAR_NOT_INITIALIZED, "rank " + std::to_string(world_.topology.rank) +
                                      " | ringar was shut down before this message"};
}

bool PointToPoint::tend(MessageStream& stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stream.busy) return true;
  stream.busy = true;
  lock.unlock();
  const bool under_way = stream.channel().tend();
  lock.lock();
  stream.busy = false;
  return under_way;
}

// Does what can be done now for all streams; `rest`: until the next look, if nothing `moved`.
// Returns whether there may be more to do.
bool PointToPoint::serve(Rest* rest_of_thread, bool* moved) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!refused_.empty()) {
    const auto [request, why] = std::move(refused_.front());
    refused_.pop_front();
    lock.unlock();
    finish_(request, why);
    lock.lock();
  }
  std::vector<MessageStream*> all;
  for (const auto& [key, stream] : streams_) all.push_back(stream.get());
  lock.unlock();
  bool polling = false, waiting = false;
  for (MessageStream* stream : all) {
    *moved |= drive(*stream, nullptr);
    if (stream->channel().polls()) polling |= tend(*stream);
  }
  lock.lock();
  for (MessageStream* stream : all) {
    if (stream->posted.empty()) continue;
    waiting = true;
    polling |= stream->channel().polls();
  }
  *rest_of_thread = waiting || polling ? rest(0, polling) : kForever;
  return !is_stopped_ || waiting || !refused_.empty();
}

// A wait lasts as long as nothing moves.
void PointToPoint::thread_main() {
  begin_thread("ringar p2p");
  for (bool is_serving = true; is_serving;) {
    Rest rest;
    (void)wait_until(rest, &doorbell(), [&](bool* moved) -> Status {
      is_serving = serve(&rest, moved);
      *moved |= !is_serving;
      return {};
    });
  }
}

void PointToPoint::stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_stopped_) return;
  is_stopped_ = true;
  doorbell().add();
  out_.wait(lock, [&] { return callers_ == 0; });
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  // A message from another host that was not received holds memory of its sender.
  for (const auto& [key, stream] : streams_)
    if (!key.sends && stream->channel().polls()) stream->channel().forget();
  (void)wait_at_most(kFarewell, {}, [&] {
    bool under_way = false;
    for (const auto& [key, stream] : streams_) under_way |= tend(*stream);
    return !under_way;
  });
}

}  // namespace ringar
