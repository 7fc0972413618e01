#include "links/tcp_connections.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ringar {
namespace {

// Longer ones are no messages of ours; MPI counts bytes in an int, too.
constexpr uint64_t kLongestMessage = INT32_MAX;

// After so many bytes other connections have their turn.
constexpr size_t kTurnBytes = size_t{4} << 20;

// A rank that hangs up once has left for the next generation. One that always does has died, or
// knows another secret.
constexpr int kMostHungUp = 5;

// As long as keepalive waits where nothing is sent (tcp_socket.cc).
constexpr std::chrono::seconds kLongestSilence(25);

}  // namespace

TcpSender::TcpSender(const Credentials& credentials, int peer, const TcpAddress& address)
    : credentials_(&credentials),
      peer_(peer),
      address_(address),
      handshake_(Handshake::opening(credentials, peer)) {}

Status TcpSender::open() {
  handshake_ = Handshake::opening(*credentials_, peer_);
  state_ = State::kConnecting;
  return begin_to_connect(address_, &socket_);
}

void TcpSender::push(int tag, const std::byte* data, size_t bytes, int handle) {
  queue_.push_back({{tag, 0, bytes}, data, handle});
}

Status TcpSender::advance(Transfers& transfers, bool has_news) {
  if (state_ == State::kConnecting) RINGAR_RETURN_IF_ERROR(connect());
  if (state_ != State::kReady) return {};
  if (has_news) RINGAR_RETURN_IF_ERROR(look_for_the_end());
  while (!queue_.empty()) {
    bool all = false;
    RINGAR_RETURN_IF_ERROR(write(queue_.front(), &all));
    if (!all) transfers.moved(queue_.front().handle, queue_.front().sent_of_data());
    if (!all) return {};
    transfers.finish(queue_.front().handle);
    queue_.pop_front();
  }
  return {};
}

Status TcpSender::connect() {
  bool done = false;
  const Status status = handshake_.advance(socket_.get(), &done);
  const bool hung_up = handshake_.was_hung_up() && ++hung_up_ < kMostHungUp;
  if (!status.ok() && !hung_up) return loss(status.message());
  if (!hung_up && !done) return {};
  state_ = hung_up || handshake_.is_too_early() ? State::kPausing : State::kReady;
  // The end of this one is no end of the other rank.
  if (state_ == State::kPausing) socket_.reset();
  if (!hung_up) hung_up_ = 0;
  return {};
}

Status TcpSender::write(Outgoing& message, bool* all) {
  const size_t total = sizeof(Frame) + message.frame.bytes;
  while (message.bytes_sent < total) {
    auto* const head = reinterpret_cast<std::byte*>(&message.frame);
    auto* const data = const_cast<std::byte*>(message.data);
    iovec parts[2] = {{head + message.bytes_sent, 0}, {data, message.frame.bytes}};
    const bool in_head = message.bytes_sent < sizeof(Frame);
    if (in_head)
      parts[0].iov_len = sizeof(Frame) - message.bytes_sent;
    else
      parts[1] = {data + (message.bytes_sent - sizeof(Frame)), total - message.bytes_sent};
    msghdr header{};
    header.msg_iov = in_head ? parts : parts + 1;
    header.msg_iovlen = in_head ? 2 : 1;
    const ssize_t n = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return *all = false, Status();
    if (n < 0) return loss(strerror(errno));
    message.bytes_sent += static_cast<size_t>(n);
  }
  return *all = true, Status();
}

// The other side sends nothing after the handshake: what can be read is the end.
Status TcpSender::look_for_the_end() {
  char byte = 0;
  const ssize_t n = ::recv(socket_.get(), &byte, 1, 0);
  if (n < 0 && errno == EAGAIN) return {};
  return loss(n < 0 ? strerror(errno) : "it has closed its TCP connection");
}

Status TcpSender::look_for_silence(std::chrono::steady_clock::time_point now) {
  if (state_ != State::kReady || !is_unanswered(socket_.get())) {
    silent_since_.reset();
    return {};
  }
  if (!silent_since_) silent_since_ = now;
  if (now - *silent_since_ < kLongestSilence) return {};
  return loss("its host has not answered for " +
              std::to_string(std::chrono::seconds(kLongestSilence).count()) + " s");
}

void TcpSender::fail(Transfers& transfers, const Status& why) {
  for (const Outgoing& message : std::exchange(queue_, {})) transfers.fail(message.handle, why);
}

Status TcpSender::loss(const std::string& why) const {
  return {RINGAR_PEER_LOST, "expected all ranks to take part, but rank " + std::to_string(peer_) +
                                " cannot be reached at " + address_.text() + ": " + why};
}

TcpReceiver::TcpReceiver(const Credentials& credentials, Descriptor socket)
    : socket_(std::move(socket)), handshake_(Handshake::accepting(credentials)) {}

Status TcpReceiver::advance(Inbox& inbox) {
  if (!ready_) {
    bool done = false;
    RINGAR_RETURN_IF_ERROR(handshake_.advance(socket_.get(), &done));
    if (done && handshake_.is_too_early()) return loss("it is ahead of this one");
    ready_ = done;
    if (!ready_) return {};
    ahead_.resize(kAhead);
  }
  const size_t before = read_;
  for (bool is_empty = false; !is_empty && read_ - before < kTurnBytes;) {
    RINGAR_RETURN_IF_ERROR(read(&is_empty));
    RINGAR_RETURN_IF_ERROR(sort(inbox));
  }
  if (message_) inbox.moved(*message_, have_);
  return {};
}

// A read that gets less than it asks for has emptied the socket.
Status TcpReceiver::read(bool* is_empty) {
  const size_t rest = message_ ? message_->bytes - have_ : 0;
  const bool is_long = rest >= kAhead;
  std::byte* const to = is_long ? message_->data + have_ : ahead_.data();
  const size_t most = is_long ? rest : kAhead;
  const ssize_t n = ::recv(socket_.get(), to, most, 0);
  *is_empty = n < static_cast<ssize_t>(most);
  if (n == 0) return loss("it has closed its TCP connection");
  if (n < 0) return errno == EAGAIN ? Status() : loss(strerror(errno));
  read_ += static_cast<size_t>(n);
  if (is_long)
    have_ += static_cast<size_t>(n);
  else
    begin_ = 0, end_ = static_cast<size_t>(n);
  return {};
}

Status TcpReceiver::sort(Inbox& inbox) {
  for (;;) {
    if (!message_) {
      auto* const head = reinterpret_cast<std::byte*>(&frame_);
      have_of_frame_ += take(head + have_of_frame_, sizeof frame_ - have_of_frame_);
      if (have_of_frame_ < sizeof frame_) return {};
      if (frame_.bytes > kLongestMessage) return loss("expected a message, received other bytes");
      message_ = inbox.begin(handshake_.peer(), frame_.tag, frame_.bytes);
      have_of_frame_ = have_ = 0;
    }
    have_ += take(message_->data + have_, message_->bytes - have_);
    if (have_ < message_->bytes) return {};
    inbox.end(std::move(*message_));
    message_.reset();
  }
}

size_t TcpReceiver::take(void* to, size_t most) {
  const size_t bytes = std::min(most, end_ - begin_);
  if (bytes > 0) std::memcpy(to, ahead_.data() + begin_, bytes);
  begin_ += bytes;
  return bytes;
}

void TcpReceiver::fail(Transfers& transfers, const Status& why) {
  if (message_ && message_->handle >= 0) transfers.fail(message_->handle, why);
}

Status TcpReceiver::loss(const std::string& why) const {
  return {RINGAR_PEER_LOST, "expected all ranks to take part, but rank " + std::to_string(peer()) +
                                " is gone: " + why};
}

}  // namespace ringar
