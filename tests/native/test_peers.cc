// Notices over a link that ends them as a test wants.

#include <cstring>

#include "check.h"
#include "engine/peers.h"

namespace ringar::test {
namespace {

class NoticeLink : public Link {
 public:
  Status send(int, int, const std::byte*, size_t, int*) override { return {}; }
  Status receive(int, int, std::byte* to, size_t size, Length, int* ticket) override {
    memory = to;
    bytes = size;
    *ticket = ++receives;
    return {};
  }
  Status progress() override { return {}; }
  Status poll(int ticket, bool* done, int*) override {
    *done = false;
    EXPECT_EQ(ticket, receives);  // those before it are over
    return fails ? Status(RINGAR_PEER_LOST, "gone") : Status();
  }

  std::byte* memory = nullptr;
  size_t bytes = 0;
  int receives = 0;
  bool fails = false;
};

TEST(peers_keep_the_memory_that_a_link_may_still_write) {
  NoticeLink link;
  const Topology topology{0, {0, 1}};
  {
    Peers peers(link, topology, nullptr, 0);
    EXPECT_OK(peers.poll());
  }
  std::memset(link.memory, 1, link.bytes);  // the address sanitizer minds
}

TEST(peers_ask_no_more_for_what_has_failed) {
  NoticeLink link;
  const Topology topology{0, {0, 1}};
  Peers peers(link, topology, nullptr, 0);
  EXPECT_OK(peers.poll());
  EXPECT_OK(peers.poll());
  EXPECT_EQ(link.receives, 1);
  link.fails = true;
  EXPECT_EQ(peers.poll().code(), RINGAR_PEER_LOST);
  link.fails = false;
  EXPECT_OK(peers.poll());
  EXPECT_EQ(link.receives, 2);
}

}  // namespace
}  // namespace ringar::test
