#include "links/tcp.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "engine/warn.h"
#include "links/tcp_connections.h"
#include "links/tcp_inbox.h"

namespace ringar {
namespace {

using Clock = std::chrono::steady_clock;

// The pause before a rank that is not at this generation yet is asked again.
constexpr std::chrono::milliseconds kPause(10);

constexpr std::chrono::seconds kBetweenLooks(1);

// The pause before a connection is accepted for which there was no descriptor.
constexpr std::chrono::milliseconds kPauseOfAccepting(100);

// Two connections to each rank, and one for each further stream, beside the program's files. Usual
// limits allow 1,024, and more to those that ask.
void allow_many_descriptors() {
  constexpr rlim_t kMany = 65'536;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= kMany) return;
  files.rlim_cur = std::min(files.rlim_max, kMany);
  (void)setrlimit(RLIMIT_NOFILE, &files);
}

// To one rank: the one that always is, and those of messages that may take others.
constexpr int kStreams = 4;

int stream_of(int tag) {
  return Link::is_apart(tag) ? tag % kStreams : 0;
}

// For what is still to be sent when the link is closed.
constexpr std::chrono::seconds kSendGrace(1);

// Of connections that have not proved anything yet, beside those of all ranks at once. Beyond, the
// oldest one is closed.
constexpr size_t kMostStrangers = 256;
constexpr std::chrono::seconds kTimeOfStrangers(10);

class TcpLink : public Link {
 public:
  TcpLink(Credentials credentials, Descriptor listener, std::vector<TcpAddress> addresses)
      : credentials_(std::move(credentials)),
        addresses_(std::move(addresses)),
        listener_(std::move(listener)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        inbox_(transfers_) {}

  // Other ranks may wait for messages still on their way; ranks that do not read them get no more.
  ~TcpLink() override {
    const auto latest = Clock::now() + kSendGrace;
    while (sends() && Clock::now() < latest && progress().ok())
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

  Status start() {
    allow_many_descriptors();
    return watch(listener_.get(), EPOLLIN, kListener);
  }

  Status send(int to, int tag, const std::byte* data, size_t bytes, int* handle) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    *handle = transfers_.begin({false, to, tag, bytes, 0, 0});
    if (const auto loss = unreachable_.find(to); loss != unreachable_.end()) {
      transfers_.fail(*handle, loss->second);
      return {};
    }
    const Stream stream{to, stream_of(tag)};
    const auto [place, is_new] = senders_.try_emplace(stream, credentials_, to, address_of(to));
    TcpSender& sender = place->second;
    sender.push(tag, data, bytes, *handle);
    go_on(stream, is_new ? open(stream, sender) : Status());
    return {};
  }

  Status receive(int from, int tag, std::byte* data, size_t bytes, Length length,
                 int* handle) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    *handle = transfers_.begin({true, from, tag, bytes, 0, 0});
    inbox_.receive({from, tag, data, bytes, length, *handle});
    return {};
  }

  Status progress() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::array<epoll_event, 64> events;
    open_again();
    look_for_silence();
    if (accepts_from_ != Clock::time_point() && accepts_from_ <= Clock::now())
      RINGAR_RETURN_IF_ERROR(accept_again());
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    if (count < 0 && errno != EINTR) return failure("look after");
    for (int i = 0; i < count; ++i)
      RINGAR_RETURN_IF_ERROR(attend_to(events[static_cast<size_t>(i)]));
    return {};
  }

  // Without the mutex: another thread may come in meanwhile, and takes nothing from this one.
  void sleep(double seconds) override {
    pollfd any{epoll_.get(), POLLIN, 0};
    const auto ns = static_cast<long>(seconds * 1e9);
    const timespec most{ns / 1'000'000'000, ns % 1'000'000'000};
    (void)::ppoll(&any, 1, &most, nullptr);
  }

  // A rank stays reachable by the first stream, whose acceptor knows it: the end of the others is
  // no loss to it.
  void close_streams() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = senders_.begin(); it != senders_.end();) {
      const auto first = senders_.find({it->first.rank, 0});
      const bool goes = it->first.number > 0 && it->second.is_idle() && first != senders_.end() &&
                        first->second.is_ready();
      it = goes ? senders_.erase(it) : std::next(it);
    }
  }

  Status poll(int handle, bool* done, int* from) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return transfers_.poll(handle, done, from);
  }

  std::vector<OpenTransfer> open_transfers() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return transfers_.open();
  }

 private:
  // What epoll is told of a connection: the stream of a sender, or the number of a receiver.
  static constexpr uint64_t kListener = 0, kFirstReceiver = 1, kFirstSender = uint64_t{1} << 63;

  struct Stream {
    int rank, number;
    bool operator<(const Stream& other) const {
      return std::tie(rank, number) < std::tie(other.rank, other.number);
    }
  };

  struct Receiver {
    TcpReceiver connection;
    Clock::time_point since;
  };
  using Receivers = std::map<uint64_t, Receiver>;  // the oldest first

  const TcpAddress& address_of(int rank) const { return addresses_[static_cast<size_t>(rank)]; }

  bool sends() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(senders_.begin(), senders_.end(),
                       [](const auto& entry) { return !entry.second.is_idle(); });
  }

  // What was too early, after a pause.
  void open_again() {
    while (!early_.empty() && early_.front().second <= Clock::now()) {
      const Stream stream = early_.front().first;
      early_.pop_front();
      const auto place = senders_.find(stream);
      if (place != senders_.end()) go_on(stream, open(stream, place->second));
    }
  }

  void look_for_silence() {
    const auto now = Clock::now();
    if (now < look_at_) return;
    look_at_ = now + kBetweenLooks;
    std::map<int, Status> silent;
    for (auto& [stream, sender] : senders_) {
      const Status status = sender.look_for_silence(now);
      if (!status.ok()) silent.emplace(stream.rank, status);
    }
    for (const auto& [rank, status] : silent) {
      inbox_.lose(rank, status);
      give_up(rank, status);
    }
  }

  Status open(const Stream& stream, TcpSender& sender) {
    RINGAR_RETURN_IF_ERROR(sender.open());
    const auto name = kFirstSender + static_cast<uint64_t>(stream.rank * kStreams + stream.number);
    return watch(sender.socket(), EPOLLIN | EPOLLOUT | EPOLLET, name);
  }

  Status watch(int socket, uint32_t events, uint64_t name) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = name;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0 ? Status()
                                                                         : failure("watch");
  }

  Status attend_to(const epoll_event& event) {
    const uint64_t name = event.data.u64;
    if (name == kListener) return accept();
    const auto receiver = receivers_.find(name);
    if (receiver != receivers_.end()) {
      go_on(receiver);
    } else if (name >= kFirstSender) {
      const auto number = static_cast<int>(name - kFirstSender);
      go_on({number / kStreams, number % kStreams}, {}, event.events != EPOLLOUT);
    }
    return {};
  }

  Status accept() {
    for (;;) {
      Descriptor socket = accept_from(listener_.get());
      const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
      if (socket.get() < 0 && is_short) return accept_later();
      if (socket.get() < 0) break;
      const uint64_t name = next_receiver_++;
      RINGAR_RETURN_IF_ERROR(watch(socket.get(), EPOLLIN, name));
      // Who accepts speaks first.
      go_on(receivers_.try_emplace(name, Receiver{{credentials_, std::move(socket)}, Clock::now()})
                .first);
      dismiss_strangers();
    }
    return {};
  }

  // The other rank waits meanwhile, until its deadline.
  Status accept_later() {
    if (!has_warned_)
      warn("rank " + std::to_string(credentials_.rank) +
           " | cannot accept a connection over TCP: " + strerror(errno) +
           "; it is accepted as soon as this is possible. Raise the limit of open " +
           "files (ulimit -n), or close files.");
    has_warned_ = true;
    accepts_from_ = Clock::now() + kPauseOfAccepting;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr) == 0
               ? Status()
               : failure("watch");
  }

  Status accept_again() {
    accepts_from_ = {};
    return watch(listener_.get(), EPOLLIN, kListener);
  }

  void dismiss_strangers() {
    const auto is_stranger = [](const auto& entry) { return entry.second.connection.peer() < 0; };
    auto count =
        static_cast<size_t>(std::count_if(receivers_.begin(), receivers_.end(), is_stranger));
    const size_t most = kMostStrangers + kStreams * addresses_.size();
    const auto latest = Clock::now() - kTimeOfStrangers;
    for (auto it = receivers_.begin(); it != receivers_.end();) {
      const bool goes = is_stranger(*it) && (count > most || it->second.since < latest);
      count -= goes ? 1 : 0;
      it = goes ? receivers_.erase(it) : std::next(it);
    }
  }

  void go_on(const Stream& stream, Status status, bool has_news = false) {
    const auto place = senders_.find(stream);
    if (place == senders_.end()) return;
    TcpSender& sender = place->second;
    const bool paused = sender.pauses();
    if (status.ok()) status = sender.advance(transfers_, has_news);
    if (status.ok() && sender.pauses() && !paused)
      early_.emplace_back(stream, Clock::now() + kPause);
    if (!status.ok()) give_up(stream.rank, status);
  }

  // A rank that one stream cannot reach gets nothing by the others either.
  void give_up(int rank, const Status& why) {
    unreachable_.emplace(rank, why);
    const auto begin = senders_.lower_bound({rank, 0}), end = senders_.lower_bound({rank + 1, 0});
    for (auto it = begin; it != end; ++it) it->second.fail(transfers_, why);
    senders_.erase(begin, end);
  }

  void go_on(Receivers::iterator place) {
    TcpReceiver& connection = place->second.connection;
    const Status status = connection.advance(inbox_);
    if (status.ok()) return;
    const int peer = connection.peer();
    connection.fail(transfers_, status);
    receivers_.erase(place);
    // Messages by other streams of a rank that has left may still be on their way.
    if (peer >= 0 && !receives_from(peer)) inbox_.lose(peer, status);
  }

  bool receives_from(int rank) const {
    return std::any_of(receivers_.begin(), receivers_.end(),
                       [&](const auto& entry) { return entry.second.connection.peer() == rank; });
  }

  static Status failure(const std::string& action) {
    return {RINGAR_UNSUPPORTED, "cannot " + action + " connections over TCP: " + strerror(errno)};
  }

  std::mutex mutex_;
  const Credentials credentials_;
  const std::vector<TcpAddress> addresses_;
  const Descriptor listener_, epoll_;
  Transfers transfers_;
  Inbox inbox_;
  std::map<Stream, TcpSender> senders_;
  std::map<int, Status> unreachable_;
  std::deque<std::pair<Stream, Clock::time_point>> early_;  // and when to open them again
  Receivers receivers_;
  uint64_t next_receiver_ = kFirstReceiver;
  Clock::time_point look_at_ = Clock::now();  // for ranks that do not answer
  Clock::time_point accepts_from_{};          // while there are no descriptors
  bool has_warned_ = false;
};

}  // namespace

Status open_tcp_link(Credentials credentials, Descriptor listener,
                     std::vector<TcpAddress> addresses, std::unique_ptr<Link>* link) {
  auto link_of_job =
      std::make_unique<TcpLink>(std::move(credentials), std::move(listener), std::move(addresses));
  RINGAR_RETURN_IF_ERROR(link_of_job->start());
  *link = std::move(link_of_job);
  return {};
}

}  // namespace ringar
