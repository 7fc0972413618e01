// Sockets of TCP: who owns a descriptor, where one listens, and how one connects.

#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "engine/status.h"

namespace ringar {

// Closes what it owns.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;

  int get() const { return fd_; }
  void reset();

 private:
  int fd_;
};

// Where a rank listens: a numeric address of IPv4 or IPv6, and a port.
struct TcpAddress {
  std::string host;
  uint16_t port = 0;

  std::string text() const;  // 10.0.0.1:4000, [fe80::1%eth0]:4000
  static TcpAddress parse(const std::string& text);
};

// Listens at an address; at any free port if its port is 0, which is then filled in.
Status listen_at(TcpAddress* address, Descriptor* listener);

// Begins to connect. Until the connection exists, calls return EAGAIN; then, why there is none.
Status begin_to_connect(const TcpAddress& address, Descriptor* connection);

// The next connection of a listener, or none.
Descriptor accept_from(int listener);

// Whether the other host does not acknowledge what was sent, or asked, some time ago.
bool is_unanswered(int connection);

}  // namespace ringar
