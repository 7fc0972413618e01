#include "links/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ringar {
namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Status parse(const TcpAddress& address, SocketAddress* parsed) {
  addrinfo hints{}, *entries = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  const std::string port = std::to_string(address.port);
  const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &entries);
  if (error != 0)
    return {RINGAR_UNSUPPORTED,
            "expected a numeric address, received " + address.host + ": " + gai_strerror(error)};
  std::memcpy(parsed->get(), entries->ai_addr, entries->ai_addrlen);
  parsed->bytes = entries->ai_addrlen;
  freeaddrinfo(entries);
  return {};
}

Status failure(const std::string& action, const TcpAddress& address) {
  return {RINGAR_UNSUPPORTED, "cannot " + action + " " + address.text() + ": " + strerror(errno)};
}

void set(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof value);
}

// A small message must not wait for the acknowledgement of the one before, and a host that is gone
// is to be noticed within half a minute: by probes where nothing is sent. While data is
// unacknowledged there are none; see `is_unanswered`.
void prepare(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

constexpr int kBacklog = 4096;

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string TcpAddress::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

TcpAddress TcpAddress::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {text, 0};
  const bool in_brackets = text[0] == '[';
  const std::string host = text.substr(in_brackets, colon - 2 * in_brackets);
  return {host, static_cast<uint16_t>(atoi(text.c_str() + colon + 1))};
}

Status listen_at(TcpAddress* address, Descriptor* listener) {
  SocketAddress local;
  RINGAR_RETURN_IF_ERROR(parse(*address, &local));
  Descriptor descriptor(
      ::socket(local.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (descriptor.get() < 0 || ::bind(descriptor.get(), local.get(), local.bytes) != 0 ||
      ::listen(descriptor.get(), kBacklog) != 0 ||
      ::getsockname(descriptor.get(), local.get(), &local.bytes) != 0)
    return failure("listen at", *address);
  address->port = ntohs(local.storage.ss_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6&>(local.storage).sin6_port
                            : reinterpret_cast<const sockaddr_in&>(local.storage).sin_port);
  *listener = std::move(descriptor);
  return {};
}

Status begin_to_connect(const TcpAddress& address, Descriptor* connection) {
  SocketAddress peer;
  RINGAR_RETURN_IF_ERROR(parse(address, &peer));
  Descriptor descriptor(
      ::socket(peer.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (descriptor.get() < 0) return failure("make a socket for", address);
  prepare(descriptor.get());
  if (::connect(descriptor.get(), peer.get(), peer.bytes) != 0 && errno != EINPROGRESS)
    return failure("connect to", address);
  *connection = std::move(descriptor);
  return {};
}

Descriptor accept_from(int listener) {
  Descriptor descriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const int error = errno;
  if (descriptor.get() >= 0) prepare(descriptor.get());
  errno = error;
  return descriptor;
}

// TCP_USER_TIMEOUT is no way to know: it also ends the connection to a host that answers, whose
// rank computes for so long that its buffers are full.
bool is_unanswered(int connection) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  constexpr uint32_t kSecond = 1000;  // ms
  return (info.tcpi_retransmits > 0 || info.tcpi_probes > 1) && info.tcpi_last_ack_recv > kSecond;
}

}  // namespace ringar
