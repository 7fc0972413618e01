// A link of Unix sockets, so that what runs between hosts is tested without MPI, and with
// sanitizers: one pair of sockets for each pair of ranks, made before the ranks are.

#pragma once

#include <memory>
#include <vector>

#include "links/link.h"

namespace ringar::test {

class SocketMesh {
 public:
  explicit SocketMesh(int size);
  ~SocketMesh();
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  // Each rank opens its own, once at a time.
  std::unique_ptr<Link> open(int rank) const;

 private:
  int size_;
  std::vector<int> sockets_;  // of rank a to rank b: a * size + b
};

}  // namespace ringar::test
