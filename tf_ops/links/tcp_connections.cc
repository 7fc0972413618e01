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

}  // namespace

TcpSender::TcpSender(const Credentials& own, int peer, const TcpAddress& address)
    : own_(&own), peer_(peer), address_(address), handshake_(Handshake::opening(own, peer)) {}

Status TcpSender::open() {
  handshake_ = Handshake::opening(*own_, peer_);
  ready_ = is_too_early_ = false;
  return begin_to_connect(address_, &socket_);
}

void TcpSender::push(int tag, const std::byte* data, size_t bytes, int handle) {
  queue_.push_back({{tag, 0, bytes}, data, handle});
}

Status TcpSender::advance(Transfers& transfers) {
  if (!ready_) {
    RINGAR_RETURN_IF_ERROR(connect(&ready_));
    is_too_early_ = handshake_.is_too_early();
    if (!ready_ || is_too_early_) return {};
  }
  RINGAR_RETURN_IF_ERROR(look_for_the_end());
  while (!queue_.empty()) {
    bool all = false;
    RINGAR_RETURN_IF_ERROR(write(queue_.front(), &all));
    if (!all) return {};
    transfers.finish(queue_.front().handle);
    queue_.pop_front();
  }
  return {};
}

Status TcpSender::connect(bool* done) {
  const Status status = handshake_.advance(socket_.get(), done);
  return status.ok() ? status : lost(status.message());
}

Status TcpSender::write(Outgoing& message, bool* all) {
  const size_t total = sizeof(Frame) + message.frame.bytes;
  while (message.sent < total) {
    auto* const head = reinterpret_cast<std::byte*>(&message.frame);
    auto* const data = const_cast<std::byte*>(message.data);
    iovec parts[2] = {{head + message.sent, 0}, {data, message.frame.bytes}};
    const bool in_head = message.sent < sizeof(Frame);
    if (in_head)
      parts[0].iov_len = sizeof(Frame) - message.sent;
    else
      parts[1] = {data + (message.sent - sizeof(Frame)), total - message.sent};
    msghdr header{};
    header.msg_iov = in_head ? parts : parts + 1;
    header.msg_iovlen = in_head ? 2 : 1;
    const ssize_t n = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return *all = false, Status();
    if (n < 0) return lost(strerror(errno));
    message.sent += static_cast<size_t>(n);
  }
  return *all = true, Status();
}

// The other side sends nothing after the handshake: what can be read is the end.
Status TcpSender::look_for_the_end() {
  char byte = 0;
  const ssize_t n = ::recv(socket_.get(), &byte, 1, 0);
  if (n < 0 && errno == EAGAIN) return {};
  return lost(n < 0 ? strerror(errno) : "it has closed its TCP connection");
}

void TcpSender::fail(Transfers& transfers, const Status& why) {
  for (const Outgoing& message : std::exchange(queue_, {})) transfers.fail(message.handle, why);
}

Status TcpSender::lost(const std::string& why) const {
  return {RINGAR_PEER_LOST, "expected all ranks to take part, but rank " + std::to_string(peer_) +
                                " cannot be reached at " + address_.text() + ": " + why};
}

TcpReceiver::TcpReceiver(const Credentials& own, Descriptor socket)
    : socket_(std::move(socket)), handshake_(Handshake::accepting(own)) {}

Status TcpReceiver::advance(Inbox& inbox) {
  if (!ready_) {
    bool done = false;
    RINGAR_RETURN_IF_ERROR(handshake_.advance(socket_.get(), &done));
    if (done && handshake_.is_too_early()) return lost("it is ahead of this one");
    ready_ = done;
    if (!ready_) return {};
  }
  for (size_t turn = 0; turn < kTurnBytes;) {
    bool all = false;
    if (!message_) {
      auto* const head = reinterpret_cast<std::byte*>(&frame_);
      RINGAR_RETURN_IF_ERROR(read(head, sizeof frame_, &have_of_frame_, &all));
      if (!all) return {};
      if (frame_.bytes > kLongestMessage) return lost("expected a message, received other bytes");
      message_ = inbox.begin(handshake_.peer(), frame_.tag, frame_.bytes);
      have_of_frame_ = have_ = 0;
    }
    RINGAR_RETURN_IF_ERROR(read(message_->data, message_->bytes, &have_, &all));
    if (!all) return {};
    turn += message_->bytes + sizeof frame_;
    inbox.end(std::move(*message_));
    message_.reset();
  }
  return {};
}

Status TcpReceiver::read(std::byte* to, size_t bytes, size_t* have, bool* all) {
  while (*have < bytes) {
    const ssize_t n = ::recv(socket_.get(), to + *have, bytes - *have, 0);
    if (n < 0 && errno == EAGAIN) return *all = false, Status();
    if (n == 0) return lost("it has closed its TCP connection");
    if (n < 0) return lost(strerror(errno));
    *have += static_cast<size_t>(n);
  }
  return *all = true, Status();
}

void TcpReceiver::fail(Transfers& transfers, const Status& why) {
  if (message_ && message_->handle >= 0) transfers.fail(message_->handle, why);
}

Status TcpReceiver::lost(const std::string& why) const {
  return {RINGAR_PEER_LOST, "expected all ranks to take part, but rank " + std::to_string(peer()) +
                                " is gone: " + why};
}

}  // namespace ringar
