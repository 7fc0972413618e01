// Control messages over links that end them as a test wants, or count them.

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <thread>

#include "check.h"
#include "engine/peers.h"
#include "engine/tags.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

class ControlLink : public Link {
 public:
  Status send(int, int, const std::byte*, size_t, int*) override { return {}; }
  Status receive(int, int, std::byte* to, size_t size, Length, int* handle) override {
    memory = to;
    bytes = size;
    *handle = ++receives;
    return {};
  }
  Status progress() override { return {}; }
  Status poll(int handle, bool* done, int*) override {
    *done = false;
    EXPECT_EQ(handle, receives);  // those before it are over
    return fails ? Status(RINGAR_PEER_LOST, "gone") : Status();
  }

  std::vector<OpenTransfer> open_transfers() override { return open; }

  std::vector<OpenTransfer> open;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  int receives = 0;
  bool fails = false;
};

TEST(peers_keep_the_memory_that_a_link_may_still_write) {
  ControlLink link;
  const Topology topology{0, {0, 1}};
  {
    Peers peers(link, topology, nullptr, 0);
    EXPECT_OK(peers.poll());
  }
  std::memset(link.memory, 1, link.bytes);  // the address sanitizer minds
}

TEST(peers_say_what_a_rank_has_open) {
  ControlLink link;
  const Topology topology{0, {0, 1}};
  const Peers peers(link, topology, nullptr, 0);
  EXPECT_EQ(peers.open_transfers(), "Rank 0 has open: no transfer.");
  link.open = {{true, Link::kAnyone, kControlTag, 1000, 0, 90},
               {true, 1, 33, 100, 40, 29},
               {true, 1, Link::apart(34), 200, 5, 30},
               {false, 1, kFirstMessageTag, 8, -1, 31}};
  EXPECT_EQ(peers.open_transfers(),
            "Rank 0 has open: 1 send(s) to rank 1 (messages; 8 bytes, for 31 s), 2 receive(s) from "
            "rank 1 (collectives; 45 of 300 bytes, for 30 s).");
  for (int rank = 2; rank < 9; ++rank) link.open.push_back({false, rank, 32000, 8, 0, 1});
  EXPECT_CONTAINS(peers.open_transfers(), "rank 5 (windows; 0 of 8 bytes, for 1 s) and 3 more.");
}

TEST(peers_ask_no_more_for_what_has_failed) {
  ControlLink link;
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

// Ranks of one host each, whose control messages arrive at once and are read when a test says so.
class Crowd {
 public:
  explicit Crowd(int size) : inboxes(static_cast<size_t>(size)) {
    for (int r = 0; r < size; ++r) members.push_back(r);
    for (int r = 0; r < size; ++r) {
      auto& rank = ranks.emplace_back(std::make_unique<Member>(*this, r));
      rank->peers.add_neighbors(members);
    }
  }

  // All but the late ones tell their neighbors that they wait in a collective, and listen.
  void tell_of_wait(const std::set<int>& laggards, uint64_t sequence) {
    for (int hop = 0, has_next = 1; has_next; ++hop) {
      for (int r : members)
        if (!laggards.count(r)) has_next = (*this)[r].waiting(0, sequence, members, hop);
      listen(laggards);
    }
  }
  void listen(const std::set<int>& silent_ranks = {}) {
    for (int r : members)
      if (!silent_ranks.count(r)) EXPECT_OK((*this)[r].poll());
  }
  // Whom a rank takes for late.
  std::set<int> laggards(int rank, uint64_t sequence) {
    std::set<int> all;
    for (int r : members)
      if (!(*this)[rank].waits(static_cast<size_t>(r), 0, sequence)) all.insert(r);
    return all;
  }
  int sends(int rank) const { return ranks[static_cast<size_t>(rank)]->sends; }
  size_t partners(int rank) const { return ranks[static_cast<size_t>(rank)]->partners.size(); }
  Peers& operator[](int rank) { return ranks[static_cast<size_t>(rank)]->peers; }

  bool is_cut(int rank, int peer) const { return (rank < split) != (peer < split); }

  std::vector<int> members;
  int split = 0;  // what ranks below it and the others send one another is lost

 private:
  using Message = std::pair<int, std::vector<std::byte>>;  // from whom

  struct Member : Link {
    Member(Crowd& crowd, int rank)
        : crowd(crowd), topology{rank, crowd.members}, peers(*this, topology, nullptr, 0) {}
    Status send(int to, int, const std::byte* data, size_t bytes, int* handle) override {
      if (!crowd.is_cut(topology.rank, to))
        crowd.inboxes[static_cast<size_t>(to)].push_back({topology.rank, {data, data + bytes}});
      partners.insert(to);
      *handle = ++sends;
      return {};
    }
    Status receive(int, int, std::byte* to, size_t bytes, Length, int* handle) override {
      memory = to;
      room = bytes;
      *handle = 0;
      return {};
    }
    Status progress() override { return {}; }
    Status poll(int handle, bool* done, int* from) override {
      auto& inbox = crowd.inboxes[static_cast<size_t>(topology.rank)];
      *done = handle > 0 || !inbox.empty();
      if (handle > 0 || inbox.empty()) return {};
      const auto& [sender, bytes] = inbox.front();
      EXPECT(bytes.size() <= room);
      std::memcpy(memory, bytes.data(), bytes.size());
      *from = sender;
      inbox.pop_front();
      return {};
    }

    Crowd& crowd;
    const Topology topology;
    std::byte* memory = nullptr;
    size_t room = 0;
    int sends = 0;
    std::set<int> partners;
    Peers peers;
  };

  std::vector<std::deque<Message>> inboxes;
  std::vector<std::unique_ptr<Member>> ranks;
};

TEST(peers_that_wait_know_who_is_late) {
  for (int size : {2, 3, 8, 100}) {
    Crowd crowd(size);
    const std::set<int> laggards = size == 100 ? std::set<int>{17, 18, 50} : std::set<int>{1};
    int hops = 0;
    while (1 << hops < size) ++hops;
    for (uint64_t sequence : {3, 4}) {
      crowd.tell_of_wait(laggards, sequence);
      crowd.tell_of_wait(laggards, sequence);
      for (int r : crowd.members)
        if (!laggards.count(r)) EXPECT(crowd.laggards(r, sequence) == laggards);
    }
    EXPECT(crowd.sends(0) <= 8 * hops);
    EXPECT(crowd.partners(0) <= 2 * static_cast<size_t>(hops));
  }
}

// Ranks 0 and 1 have ended collective 7, in which rank 3 waits for rank 2 alone.
TEST(peers_that_are_ahead_are_not_late) {
  Crowd crowd(4);
  for (int round = 0; round < 2; ++round) {
    crowd.tell_of_wait({2, 3}, 8);
    crowd.tell_of_wait({0, 1, 2}, 7);
  }
  EXPECT(crowd.laggards(3, 7) == std::set<int>{2});
  for (int rank : {0, 1}) EXPECT((crowd.laggards(rank, 8) == std::set<int>{2, 3}));
}

// Where the links between hosts are down, only the ranks behind them are late.
TEST(peers_of_a_host_know_of_one_another_without_the_other_hosts) {
  for (int size : {3, 4, 8, 13}) {
    Crowd crowd(size);
    crowd.split = size / 2;
    crowd.tell_of_wait({}, 3);
    crowd.tell_of_wait({}, 3);
    for (int r : crowd.members) {
      std::set<int> beyond;
      for (int other : crowd.members)
        if (crowd.is_cut(r, other)) beyond.insert(other);
      EXPECT(crowd.laggards(r, 3) == beyond);
    }
  }
}

// Who hears of it gives up, too, and passes the cause on, not a chain of causes.
TEST(peers_hear_of_an_end_by_their_neighbors) {
  Crowd crowd(100);
  crowd[42].gave_up("too tired");
  for (int round = 0; round < 7; ++round) {
    crowd.listen();
    for (int r : crowd.members) {
      const std::string why = crowd[r].trouble(42, 0, 0);
      if (!why.empty()) crowd[r].gave_up("rank " + std::to_string(r) + " | lost: " + why);
    }
  }
  for (int r : crowd.members) {
    if (r == 42) continue;
    EXPECT_EQ(crowd[r].trouble(42, 0, 0), "rank 42 has given up: too tired");
    const int neighbor = (r + 1) % 100;
    if (neighbor != 42) EXPECT_EQ(crowd[r].trouble(neighbor, 0, 0), crowd[r].trouble(42, 0, 0));
    EXPECT(crowd.sends(r) <= 28);  // one control message passed on, and its own, to 14 neighbors
    EXPECT(crowd.partners(r) <= 14);
  }
}

TEST(peers_are_told_when_they_have_asked) {
  Crowd crowd(64);
  crowd[0].waiting(-2, 5, {11}, 0);  // a message of a rank that is no neighbor
  EXPECT_EQ(crowd.sends(0), 1);
  crowd[11].left();
  crowd.listen();
  EXPECT_CONTAINS(crowd[0].trouble(11, -2, 5), "rank 11 has left");
  EXPECT_EQ(crowd[0].trouble(11, -2, Peers::kLossOnly), "");
  EXPECT_EQ(crowd[2].trouble(11, 0, 5), "");  // neither a neighbor nor one that has asked
}

class CountingLink : public Link {
 public:
  CountingLink(std::unique_ptr<Link> link, std::atomic<int>* messages)
      : link_(std::move(link)), messages_(messages) {}
  Status send(int to, int tag, const std::byte* data, size_t bytes, int* handle) override {
    *messages_ += tag == 0;
    return link_->send(to, tag, data, bytes, handle);
  }
  Status receive(int from, int tag, std::byte* data, size_t bytes, Length length,
                 int* handle) override {
    return link_->receive(from, tag, data, bytes, length, handle);
  }
  Status progress() override { return link_->progress(); }
  Status poll(int handle, bool* done, int* from) override {
    return link_->poll(handle, done, from);
  }

 private:
  const std::unique_ptr<Link> link_;
  std::atomic<int>* const messages_;
};

// A job that stalls for more than a second, and ends.
TEST(peers_of_sixteen_hosts_send_few_control_messages) {
  on_processes(Hosts{std::vector<int>(16, 1)}, [](Rank& me) {
    std::atomic<int> messages{0};
    Engine engine(me.config, std::make_unique<CountingLink>(me.mesh->open(me.rank), &messages));
    EXPECT_OK(engine.start());
    me.meet(0);
    messages = 0;  // ranks that start late are waited for, too
    if (me.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1400));
    TestRequest barrier("barrier name=late");
    EXPECT_OK(engine.run(barrier));
    engine.stop();
    EXPECT(messages <= 7 + 7);  // of the wait, of the end
    me.meet(1);
  });
}

}  // namespace
}  // namespace ringar::test
