// The link over TCP: its messages, its errors, and what strangers can do to it.

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "links/sha256.h"
#include "links/tcp.h"
#include "numbers.h"

namespace ringar::test {
namespace {

using Clock = std::chrono::steady_clock;
using Buffer = Bytes;

Buffer pattern(size_t bytes, uint64_t seed) {
  return random_bytes(DataType::kUint8, bytes, seed);
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

// The links of some ranks in one thread.
struct Links {
  std::vector<Descriptor> listeners;
  std::vector<TcpAddress> addresses;
  std::vector<std::unique_ptr<Link>> ranks;

  // `change` alters the credentials of a rank; without it, all ranks are of one job.
  explicit Links(int size, const std::string& host = "127.0.0.1",
                 const std::function<void(Credentials&)>& change = nullptr)
      : listeners(static_cast<size_t>(size)) {
    for (Descriptor& listener : listeners) {
      TcpAddress address{host};
      EXPECT_OK(listen_at(&address, &listener));
      addresses.push_back(address);
    }
    for (int rank = 0; rank < size; ++rank) {
      Credentials credentials{rank, 1, "a secret"};
      if (change) change(credentials);
      ranks.emplace_back();
      open(credentials);
    }
  }

  void open(const Credentials& credentials) {
    const auto rank = static_cast<size_t>(credentials.rank);
    ranks[rank].reset();
    EXPECT_OK(open_tcp_link(credentials, Descriptor(dup(listeners[rank].get())), addresses,
                            &ranks[rank]));
  }

  // All look after their transfers until `handle` of `rank` is done, for 10 s at most.
  Status wait(int rank, int handle, int* from = nullptr) {
    const auto end = Clock::now() + std::chrono::seconds(10);
    while (Clock::now() < end) {
      for (const auto& link : ranks)
        if (link) EXPECT_OK(link->progress());
      bool done = false;
      const Status status = of(rank).poll(handle, &done, from);
      if (done) return status;
    }
    return {RINGAR_DEADLINE, "the transfer did not end"};
  }

  Link& of(int rank) { return *ranks[static_cast<size_t>(rank)]; }
  int send(int from, int to, int tag, const Buffer& data) {
    int handle = -1;
    EXPECT_OK(of(from).send(to, tag, data.data(), data.size(), &handle));
    return handle;
  }
  int receive(int to, int from, int tag, Buffer& data, Link::Length length = Link::Length::kExact) {
    int handle = -1;
    EXPECT_OK(of(to).receive(from, tag, data.data(), data.size(), length, &handle));
    return handle;
  }
};

// The number of the next file that is opened.
int next_descriptor() {
  const int fd = dup(0);
  close(fd);
  return fd;
}

int connect_raw(const TcpAddress& address) {
  Descriptor socket;
  EXPECT_OK(begin_to_connect(address, &socket));
  const int fd = dup(socket.get());
  return fd;
}

}  // namespace

TEST(sha256_and_hmac_are_those_of_the_standards) {
  EXPECT_EQ(hex(sha256("abc")),
            std::string("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
  EXPECT_EQ(hex(sha256(std::string(64, 'a'))),
            std::string("ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"));
  // RFC 4231, cases 2 and 6.
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            std::string("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                            "Test Using Larger Than Block-Size Key - Hash Key First")),
            std::string("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"));
}

TEST(tcp_link_carries_messages_of_any_length) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    Links links(2, host);
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{20'000'000}}) {
      const Buffer forth = pattern(bytes, 1), back = pattern(bytes, 2);
      Buffer at_0(bytes), at_1(bytes);
      const int received_1 = links.receive(1, 0, 7, at_1), sent_0 = links.send(0, 1, 7, forth);
      const int received_0 = links.receive(0, 1, 7, at_0), sent_1 = links.send(1, 0, 7, back);
      EXPECT_OK(links.wait(1, received_1));
      EXPECT_OK(links.wait(0, received_0));
      EXPECT_OK(links.wait(0, sent_0));
      EXPECT_OK(links.wait(1, sent_1));
      EXPECT(same_bytes(at_1, forth) && same_bytes(at_0, back));
    }
  }
}

TEST(tcp_link_tells_what_is_open_and_how_much_of_it_has_moved) {
  const Buffer large = pattern(20'000'000, 1);
  Buffer memory(large.size());
  Links links(2);  // ends before the memory of what is still open
  const int receives = links.receive(1, 0, 7, memory);
  const int sends = links.send(0, 1, 7, large);
  EXPECT_OK(links.wait(0, links.send(0, 1, 8, Buffer())));
  EXPECT_OK(links.wait(1, receives));
  EXPECT_OK(links.wait(0, sends));
  EXPECT(links.of(0).open_transfers().empty() && links.of(1).open_transfers().empty());
  // The receiver reads no more than a part: it is asked once.
  links.send(0, 1, 9, large);
  links.receive(1, 0, 9, memory);
  for (int i = 0; i < 20; ++i) EXPECT_OK(links.of(0).progress());
  EXPECT_OK(links.of(1).progress());
  for (const int rank : {0, 1}) {
    const std::vector<OpenTransfer> open = links.of(rank).open_transfers();
    EXPECT_EQ(open.size(), size_t{1});
    EXPECT_EQ(open[0].receives, rank == 1);
    EXPECT_EQ(open[0].peer, 1 - rank);
    EXPECT_EQ(open[0].tag, 9);
    EXPECT_EQ(open[0].bytes, large.size());
    EXPECT(open[0].moved > 0 && open[0].moved < static_cast<int64_t>(large.size()));
    EXPECT(open[0].seconds >= 0 && open[0].seconds < 100);
  }
}

TEST(tcp_link_matches_tags_and_senders_in_order) {
  Links links(3);
  const Buffer first = pattern(100, 1), second = pattern(100, 2), other = pattern(50, 3);
  // They come before anybody waits for them.
  for (const int handle : {links.send(0, 2, 7, first), links.send(0, 2, 7, second)})
    EXPECT_OK(links.wait(0, handle));
  EXPECT_OK(links.wait(1, links.send(1, 2, 8, other)));
  Buffer a(100), b(100), c(200);
  int from = -1;
  EXPECT_OK(links.wait(2, links.receive(2, Link::kAnyone, 8, c, Link::Length::kAtMost), &from));
  EXPECT_EQ(from, 1);
  EXPECT(std::equal(other.begin(), other.end(), c.begin()));
  EXPECT_OK(links.wait(2, links.receive(2, 0, 7, a)));
  EXPECT_OK(links.wait(2, links.receive(2, Link::kAnyone, 7, b), &from));
  EXPECT_EQ(from, 0);
  EXPECT(a == first && b == second);
}

TEST(tcp_link_expects_messages_of_the_right_length) {
  for (const bool early : {false, true}) {
    Links links(2);
    const Buffer message = pattern(100, 1);
    Buffer misfit(99), right(100);
    int handle = early ? -1 : links.receive(1, 0, 7, misfit);
    EXPECT_OK(links.wait(0, links.send(0, 1, 7, message)));
    if (early) handle = links.receive(1, 0, 7, misfit);
    const Status status = links.wait(1, handle);
    EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
    EXPECT_CONTAINS(status.message(),
                    "could not receive from rank 0 over TCP: expected a message of 99 bytes, "
                    "received one of 100");
    // The next one is read from its beginning.
    EXPECT_OK(links.wait(0, links.send(0, 1, 7, message)));
    EXPECT_OK(links.wait(1, links.receive(1, 0, 7, right)));
    EXPECT(right == message);
  }
}

TEST(tcp_link_tells_who_has_gone) {
  Links links(2);
  const Buffer data = pattern(100, 1);
  Buffer memory(100);
  EXPECT_OK(links.wait(0, links.send(0, 1, 7, data)));
  EXPECT_OK(links.wait(1, links.receive(1, 0, 7, memory)));
  EXPECT_OK(links.wait(1, links.send(1, 0, 7, data)));
  const int waits = links.receive(1, 0, 7, memory);
  links.ranks[0].reset();
  links.listeners[0].reset();
  const Status received = links.wait(1, waits);
  EXPECT_EQ(received.code(), RINGAR_PEER_LOST);
  EXPECT_CONTAINS(received.message(), "but rank 0 is gone: it has closed its TCP connection");
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Status status = links.wait(1, links.send(1, 0, 7, data));
    EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
    EXPECT_CONTAINS(status.message(),
                    "but rank 0 cannot be reached at " + links.addresses[0].text() + ": ");
  }
}

// Each tag has its stream, and its messages their order; so have all of a rank that leaves.
TEST(tcp_link_has_several_streams) {
  Links links(2);
  constexpr int kTags = 7;
  std::vector<Buffer> sources, memory;
  for (int i = 0; i < 4 * kTags; ++i) sources.push_back(pattern(i % 3 ? 300'000 : 10, i));
  for (const Buffer& data : sources) memory.emplace_back(data.size());
  const auto tag = [](size_t i) { return Link::apart(static_cast<int>(i % kTags)); };
  std::vector<int> sends, receives;
  for (size_t i = 0; i < sources.size(); ++i) {
    receives.push_back(links.receive(1, 0, tag(i), memory[i]));
    sends.push_back(links.send(0, 1, tag(i), sources[i]));
  }
  for (const int handle : sends) EXPECT_OK(links.wait(0, handle));
  Buffer none(1);
  const int waits = links.receive(1, 0, 3, none), apart = links.receive(1, 0, tag(5), none);
  links.ranks[0].reset();
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_OK(links.wait(1, receives[i]));
    EXPECT(memory[i] == sources[i]);
  }
  for (const int handle : {waits, apart})
    EXPECT_CONTAINS(links.wait(1, handle).message(), "but rank 0 is gone: it has closed");
  // What one stream tells, all others know.
  links.listeners[0].reset();
  for (const int to : {tag(0), tag(1), 3})
    EXPECT_CONTAINS(links.wait(1, links.send(1, 0, to, none)).message(), "cannot be reached at");
}

TEST(tcp_link_closes_streams_that_are_not_needed) {
  Links links(2);
  const Buffer data = pattern(1000, 1);
  const auto exchange = [&](int tag) {
    Buffer memory(data.size());
    const int send = links.send(0, 1, tag, data);
    EXPECT_OK(links.wait(1, links.receive(1, 0, tag, memory)));
    EXPECT_OK(links.wait(0, send));
    EXPECT(memory == data);
  };
  exchange(7);
  const int before = next_descriptor();
  for (int tag = 1; tag < 4; ++tag) exchange(Link::apart(tag));
  EXPECT_EQ(next_descriptor(), before + 6);
  links.of(0).close_streams();
  exchange(7);
  EXPECT_EQ(next_descriptor(), before);
  exchange(Link::apart(1));
}

TEST(tcp_link_accepts_later_where_descriptors_are_short) {
  Links links(2);
  rlimit files{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const Buffer data = pattern(1000, 1);
  Buffer memory(data.size());
  const int send = links.send(0, 1, 7, data), received = links.receive(1, 0, 7, memory);
  const rlimit limits{static_cast<rlim_t>(next_descriptor()), files.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limits), 0);
  bool done = true;
  for (int i = 0; i < 100; ++i) EXPECT_OK(links.of(1).progress());
  EXPECT_OK(links.of(1).poll(received, &done));
  EXPECT(!done);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_OK(links.wait(1, received));
  EXPECT_OK(links.wait(0, send));
  EXPECT(memory == data);
}

TEST(tcp_link_tells_that_nobody_listens) {
  Links links(2);
  links.ranks[0].reset();
  links.listeners[0].reset();
  const Status status = links.wait(1, links.send(1, 0, 7, pattern(9, 1)));
  EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
  EXPECT_CONTAINS(status.message(), "Connection refused");
}

TEST(tcp_link_refuses_ranks_of_other_jobs) {
  const std::function<void(Credentials&)> changes[] = {
      [](Credentials& credentials) { credentials.secret += credentials.rank == 1 ? "!" : ""; },
      [](Credentials& credentials) { credentials.generation -= credentials.rank; },
  };
  for (const auto& change : changes) {
    Links links(2, "127.0.0.1", change);
    const Buffer data = pattern(9, 1);
    Buffer memory(9);
    const int waits = links.receive(0, 1, 7, memory);
    const Status status = links.wait(1, links.send(1, 0, 7, data));
    EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
    EXPECT_CONTAINS(status.message(), "expected a rank of this job there, received ");
    bool done = true;
    EXPECT_OK(links.of(0).poll(waits, &done, nullptr));
    EXPECT(!done);
  }
}

TEST(tcp_link_waits_for_ranks_of_its_generation) {
  Links links(2);
  links.open({1, 2, "a secret"});
  const Buffer data = pattern(9, 1);
  Buffer memory(9);
  const int send = links.send(1, 0, 7, data), early = links.receive(0, 1, 7, memory);
  const auto end = Clock::now() + std::chrono::milliseconds(100);
  for (bool done = false; Clock::now() < end;) {
    EXPECT_OK(links.of(0).progress());
    EXPECT_OK(links.of(1).progress());
    EXPECT_OK(links.of(0).poll(early, &done, nullptr));
    EXPECT(!done);
  }
  links.open({0, 2, "a secret"});
  const int received = links.receive(0, 1, 7, memory);
  EXPECT_OK(links.wait(1, send));
  EXPECT_OK(links.wait(0, received));
  EXPECT(memory == data);
}

// An acceptor by hand, whose steps a test can put between those of a link.
struct Acceptor {
  const Credentials credentials{0, 1, "a secret"};
  Handshake handshake = Handshake::accepting(credentials);
  Descriptor socket;

  // Accepts a connection, and goes on with the handshake; true when it is over.
  bool advance(const Descriptor& listener) {
    if (socket.get() < 0) socket = accept_from(listener.get());
    bool done = false;
    if (socket.get() >= 0) EXPECT_OK(handshake.advance(socket.get(), &done));
    return done;
  }
};

// The end of a connection may come some time after the word "later", and messages in between.
TEST(tcp_link_loses_nothing_that_was_too_early) {
  Links links(2);
  links.ranks[0].reset();
  links.open({1, 2, "a secret"});
  const Buffer data[] = {pattern(9, 1), pattern(5000, 2), pattern(9, 3)};
  std::vector<int> sends = {links.send(1, 0, 7, data[0])};
  Acceptor early;
  while (!early.advance(links.listeners[0])) EXPECT_OK(links.of(1).progress());
  EXPECT(early.handshake.is_too_early());
  EXPECT_OK(links.of(1).progress());
  sends.push_back(links.send(1, 0, 7, data[1]));
  early.socket.reset();
  EXPECT_OK(links.of(1).progress());
  sends.push_back(links.send(1, 0, 7, data[2]));
  links.open({0, 2, "a secret"});
  for (const Buffer& message : data) {
    Buffer memory(message.size());
    EXPECT_OK(links.wait(0, links.receive(0, 1, 7, memory)));
    EXPECT(memory == message);
  }
  for (const int handle : sends) EXPECT_OK(links.wait(1, handle));
}

// A rank leaves for the next generation in the middle of a handshake.
TEST(tcp_link_asks_again_who_has_hung_up) {
  for (const bool has_answered : {false, true}) {
    Links links(2);
    links.ranks[0].reset();
    const Buffer data = pattern(9, 1);
    Buffer memory(data.size());
    const int send = links.send(1, 0, 7, data);
    {
      Acceptor leaves;
      while (leaves.socket.get() < 0) EXPECT(!leaves.advance(links.listeners[0]));
      // Its answer is not read any more.
      for (int i = 0; has_answered && i < 100; ++i) EXPECT_OK(links.of(1).progress());
    }
    EXPECT_OK(links.of(1).progress());
    links.open({0, 1, "a secret"});
    EXPECT_OK(links.wait(0, links.receive(0, 1, 7, memory)));
    EXPECT_OK(links.wait(1, send));
    EXPECT(memory == data);
  }
}

TEST(tcp_link_is_not_hurt_by_strangers) {
  Links links(2);
  std::mt19937 random(1);
  std::vector<Descriptor> strangers;
  const Buffer data = pattern(3000, 1);
  for (int round = 0; round < 400; ++round) {
    // Some say nothing, some say anything, some begin like a rank, some leave at once.
    strangers.emplace_back(connect_raw(links.addresses[static_cast<size_t>(round % 2)]));
    Buffer noise = pattern(random() % 200, static_cast<unsigned>(round));
    if (round % 3 == 0 && noise.size() > 4) std::fill_n(noise.begin(), 4, std::byte{});
    if (round % 4 != 0)
      (void)::send(strangers.back().get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    if (round % 7 == 0) strangers.back().reset();
    Buffer memory(data.size());
    const int from = round % 2;
    const int waits = links.receive(1 - from, from, 7, memory);
    EXPECT_OK(links.wait(from, links.send(from, 1 - from, 7, data)));
    EXPECT_OK(links.wait(1 - from, waits));
    EXPECT(memory == data);
  }
}

// The ranks of a large job may all connect at once.
TEST(tcp_link_takes_no_rank_of_its_job_for_one_stranger_too_many) {
  constexpr int kRanks = 300;
  std::vector<TcpAddress> addresses(kRanks, {"127.0.0.1"});
  Descriptor listener;
  EXPECT_OK(listen_at(addresses.data(), &listener));
  std::unique_ptr<Link> link;
  std::vector<Descriptor> connections;
  for (int rank = 1; rank < kRanks; ++rank) connections.emplace_back(connect_raw(addresses[0]));
  EXPECT_OK(open_tcp_link({0, 1, "a secret"}, std::move(listener), addresses, &link));
  EXPECT_OK(link->progress());
  for (const Descriptor& connection : connections) {
    char word[256];
    EXPECT(::recv(connection.get(), word, sizeof word, MSG_DONTWAIT) > 0);
    EXPECT_EQ(::recv(connection.get(), word, sizeof word, MSG_DONTWAIT), -1);  // no end
  }
}

TEST(tcp_link_tells_of_bad_addresses) {
  TcpAddress address{"no such address"};
  Descriptor listener;
  Status status = listen_at(&address, &listener);
  EXPECT_EQ(status.code(), RINGAR_UNSUPPORTED);
  EXPECT_CONTAINS(status.message(), "expected a numeric address, received no such address");
  address.host = "192.0.2.1";  // of no interface
  status = listen_at(&address, &listener);
  EXPECT_CONTAINS(status.message(), "cannot listen at 192.0.2.1:0: ");
  TcpAddress port{"127.0.0.1"};
  Descriptor second;
  EXPECT_OK(listen_at(&port, &listener));
  EXPECT_CONTAINS(listen_at(&port, &second).message(), "Address already in use");
}

}  // namespace ringar::test
