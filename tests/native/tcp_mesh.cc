#include "tcp_mesh.h"

#include <unistd.h>

#include "check.h"

namespace ringar::test {

TcpMesh::TcpMesh(int size) : listeners_(static_cast<size_t>(size)) {
  for (Descriptor& listener : listeners_) {
    TcpAddress address{"127.0.0.1"};
    EXPECT_OK(listen_at(&address, &listener));
    addresses_.push_back(address);
  }
}

std::unique_ptr<Link> TcpMesh::open(int rank) const {
  Descriptor listener(dup(listeners_[static_cast<size_t>(rank)].get()));
  std::unique_ptr<Link> link;
  EXPECT_OK(
      open_tcp_link({rank, 0, "the secret of the tests"}, std::move(listener), addresses_, &link));
  return link;
}

}  // namespace ringar::test
