#include "engine/mail.h"

#include "engine/link_channel.h"
#include "engine/thread.h"
#include "engine/traffic.h"
#include "engine/wait.h"

namespace ringar {
namespace {

constexpr double kFarewell = 0.5;        // seconds
constexpr Rest kForever{0, 3600, 3600};  // until somebody rings

// Where nobody rings, a rank has to look.
Rest rest(double spin, bool polls) {
  return polls ? Rest{spin} : Rest::until_woken(spin);
}

}  // namespace

// A channel with what is to go through it.
struct Mail::Stream {
  Stream(int rank, int other, Peers* peers, std::unique_ptr<Channel> way)
      : peer{other}, channel(std::move(way)), current{rank, kNoSet, -1, peer, peers} {}

  const std::vector<int> peer;
  const std::unique_ptr<Channel> channel;
  std::deque<Posted> posted;  // the oldest first
  bool busy = false;          // a thread is at it; what follows is that thread's

  Status broken;
  Current current;
  std::optional<Vigil> vigil;  // of the oldest, once it waits
  std::optional<double> lost_at;
};

Mail::Mail(const World& world, int generation, Finish finish)
    : world_(world), generation_(generation), finish_(std::move(finish)) {}

// Nothing is mapped in a job that sends no messages.
void Mail::open_bell() {
  const Topology& topology = world_.topology;
  if (!world_.arena || own_bell_) return;
  own_bell_.emplace(*world_.arena, topology.arena_place(topology.rank));
}

Mail::~Mail() {
  stop();
}

Mail::Stream& Mail::stream(bool sends, int peer) {
  auto& stream = streams_[{sends, peer}];
  if (!stream)
    stream = std::make_unique<Stream>(world_.topology.rank, peer, world_.peers, open(sends, peer));
  return *stream;
}

std::unique_ptr<Channel> Mail::open(bool sends, int peer) {
  const Topology& topology = world_.topology;
  if (!topology.is_here(peer))
    return sends ? open_to_send(*world_.link, peer, generation_)
                 : open_to_receive(*world_.link, peer, topology.rank, generation_);
  const int me = topology.arena_place(topology.rank), other = topology.arena_place(peer);
  const int here = static_cast<int>(topology.ranks_here().size());
  if (!room_) room_.emplace(me, here);
  if (sends) return open_to_send({world_.arena, here, me, other, topology.rank, peer}, *room_);
  return open_to_receive({world_.arena, here, other, me, peer, topology.rank});
}

void Mail::start_thread() {
  if (!thread_.joinable()) thread_ = std::thread([this] { thread_main(); });
}

void Mail::post(Request* request, int peer, const Status& refusal) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    RINGAR_CHECK(!stopped_);
    open_bell();
    if (refusal.ok())
      stream(request->spec.collective == Collective::kSend, peer).posted.push_back({request});
    else
      refused_.emplace_back(request, refusal);
    start_thread();
  }
  bell().add();
}

Status Mail::run(Request& request, int peer) {
  Status status;
  bool done = false;
  Stream* mine = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return stopped();
    open_bell();
    mine = &stream(request.spec.collective == Collective::kSend, peer);
    mine->posted.push_back({&request, &status, &done});
    if (mine->channel->polls()) start_thread();
    ++callers_;
  }
  const bool polls = mine->channel->polls();
  (void)wait_until(rest(world_.patience.spin(), polls), &bell(), [&](bool* over) -> Status {
    drive(*mine, &done);
    const std::lock_guard<std::mutex> lock(mutex_);
    *over = done;
    return {};
  });
  // What is still on its way is the thread's to go on with.
  if (polls) bell().add();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--callers_ == 0) out_.notify_all();
  return status;
}

// `mine`: what the caller of this waits for; others are told when they are done.
bool Mail::drive(Stream& stream, const bool* mine) {
  bool moved = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stream.busy && !stream.posted.empty()) {
    const Posted posted = stream.posted.front();
    stream.busy = true;
    bool done = false;
    Status status = given_up_.ok() ? stream.broken : given_up_;
    if (status.ok()) {
      lock.unlock();
      status = advance(stream, *posted.request, &done);
      lock.lock();
    }
    stream.busy = false;
    if (status.ok() && !done) return moved;
    moved = true;
    stream.posted.pop_front();
    // Somebody must go on with the others if this thread does not come again.
    const bool ring = !stream.posted.empty() || (posted.done && posted.done != mine);
    if (posted.done) {
      *posted.status = status;
      *posted.done = true;
    } else {
      lock.unlock();
      finish_(posted.request, status);
      lock.lock();
    }
    if (ring) bell().add();
  }
  return moved;
}

Status Mail::advance(Stream& stream, Request& request, bool* done) {
  const int64_t begin = Timeline::instance().on() ? monotonic_ns() : 0;
  Status status = stream.channel->advance(request, done);
  if (status.ok() && !*done) {
    status = keep_waiting(stream, request, done);
    if (status.ok() && !*done) return {};
  }
  stream.vigil.reset();
  stream.lost_at.reset();
  return note(stream, request, begin, status);
}

// What a peer has done before it went is looked for once more, and for a while where it may still
// be on its way.
Status Mail::keep_waiting(Stream& stream, Request& request, bool* done) {
  const Patience& patience = world_.patience;
  const bool stopping = patience.stop->load();
  if (!stream.vigil) {
    stream.current.signature = describe(stream, request);
    stream.vigil.emplace(patience, stream.current);
  }
  const int peer = stream.peer[0];
  const auto trouble = [&] {
    const Topology& topology = world_.topology;
    return topology.is_here(peer) ? world_.arena->trouble(topology.arena_place(peer)) : "";
  };
  const Status status = stream.vigil->check(trouble, [&] { return std::to_string(peer); });
  if (status.ok() || status.code() != RINGAR_PEER_LOST || stopping) return status;
  RINGAR_RETURN_IF_ERROR(stream.channel->advance(request, done));
  const double waited = stream.vigil->seconds();
  if (!stream.lost_at) stream.lost_at = waited;
  const bool grace = waited - *stream.lost_at < stream.channel->grace();
  return *done || (grace && waited < patience.deadline) ? Status() : status;
}

Signature Mail::describe(const Stream& stream, const Request& request) const {
  Signature signature = Signature::of(request, "", stream.channel->number());
  signature.root = stream.peer[0];
  return signature;
}

// Writes down how a request has ended, and returns that as the user is to see it.
Status Mail::note(Stream& stream, const Request& request, int64_t begin, const Status& status) {
  const bool sends = request.spec.collective == Collective::kSend;
  if (status.ok() && sends) Traffic::instance().add(request, 0, 0);
  if (begin > 0 && status.ok())
    Timeline::instance().message(request, describe(stream, request).title(), begin);
  if (status.ok()) return status;
  stream.current.signature = describe(stream, request);
  std::string text = stream.current.prefix();
  if (sends && status.code() == RINGAR_MISMATCH)
    text += "this one was not sent, since rank " + std::to_string(stream.peer[0]) +
            " has refused one before it: ";
  const Status failure(status.code(), text + status.message());
  if (status.code() == RINGAR_MISMATCH) return failure;
  stream.broken = failure;
  tell_others(failure);
  return failure;
}

void Mail::tell_others(const Status& status) {
  is_broken_.store(true);
  if (world_.arena) world_.arena->give_up(status.message());
  if (world_.peers) world_.peers->gave_up(status.message());
}

bool Mail::has(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, stream] : streams_)
    for (const Posted& posted : stream->posted)
      if (posted.request->turn && posted.request->step == step) return true;
  return false;
}

void Mail::give_up(const Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (given_up_.ok()) given_up_ = status;
  }
  tell_others(status);
  bell().add();
}

Status Mail::stopped() const {
  return {RINGAR_NOT_INITIALIZED, "rank " + std::to_string(world_.topology.rank) +
                                      " | ringar was shut down before this message"};
}

bool Mail::tend(Stream& stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stream.busy) return true;
  stream.busy = true;
  lock.unlock();
  const bool under_way = stream.channel->tend();
  lock.lock();
  stream.busy = false;
  return under_way;
}

// Does what can be done now for all streams; `rest`: until the next look, if nothing `moved`.
// Returns whether there may be more to do.
bool Mail::serve(Rest* rest_of_thread, bool* moved) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!refused_.empty()) {
    const auto [request, why] = std::move(refused_.front());
    refused_.pop_front();
    lock.unlock();
    finish_(request, why);
    lock.lock();
  }
  std::vector<Stream*> all;
  for (const auto& [key, stream] : streams_) all.push_back(stream.get());
  lock.unlock();
  bool polling = false, waiting = false;
  for (Stream* stream : all) {
    *moved |= drive(*stream, nullptr);
    if (stream->channel->polls()) polling |= tend(*stream);
  }
  lock.lock();
  for (Stream* stream : all) {
    if (stream->posted.empty()) continue;
    waiting = true;
    polling |= stream->channel->polls();
  }
  *rest_of_thread = waiting || polling ? rest(0, polling) : kForever;
  return !stopped_ || waiting || !refused_.empty();
}

// A wait lasts as long as nothing moves.
void Mail::thread_main() {
  begin_thread("ringar mail");
  for (bool more = true; more;) {
    Rest rest;
    (void)wait_until(rest, &bell(), [&](bool* moved) -> Status {
      more = serve(&rest, moved);
      *moved |= !more;
      return {};
    });
  }
}

void Mail::stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  bell().add();
  out_.wait(lock, [&] { return callers_ == 0; });
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  (void)wait_at_most(kFarewell, {}, [&] {
    bool under_way = false;
    for (const auto& [key, stream] : streams_) under_way |= tend(*stream);
    return !under_way;
  });
}

}  // namespace ringar
