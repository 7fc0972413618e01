// Links over TCP on the loopback interface, so that what runs between hosts is tested without MPI,
// and with sanitizers. Each rank listens before the ranks are made.

#pragma once

#include <memory>
#include <vector>

#include "links/link.h"
#include "links/tcp.h"

namespace ringar::test {

class TcpMesh {
 public:
  explicit TcpMesh(int size);

  // Each rank opens its own, once at a time. Links of the same rank share its listener.
  std::unique_ptr<Link> open(int rank) const;

 private:
  std::vector<Descriptor> listeners_;
  std::vector<TcpAddress> addresses_;
};

}  // namespace ringar::test
