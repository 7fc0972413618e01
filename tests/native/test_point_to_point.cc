// Messages from rank to rank, within a host and between hosts: their order and bytes, how long a
// send waits, and what they take of the shared segment.

#include <sys/stat.h>
#include <unistd.h>

#include "engine/traffic.h"
#include "point_to_point.h"

namespace ringar::test {
namespace {

constexpr int kMessages = kSanitized ? 40 : 200;
constexpr size_t kLargest = kSanitized ? 300'000 : 1'500'000;

// Sizes of a stream of messages: none, few bytes, and now and then the longest so far.
Dims dims_of(int message) {
  const size_t most = kLargest / 4 * static_cast<size_t>(message + 1) / kMessages;
  const size_t sizes[] = {0, 1, 7, static_cast<size_t>(message) * 31 % 5000, most};
  return {static_cast<int64_t>(sizes[message % 5]), 1};
}

void stream_from_0_to_1(Rank& me) {
  const auto engine = me.start();
  for (int i = 0; i < kMessages; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    if (me.rank == 0) {
      Send send(1);
      EXPECT_OK(engine->run(send.with(dims_of(i), seed)));
      EXPECT(send.input_is_untouched(0));
    } else if (me.rank == 1) {
      Recv recv(0);
      EXPECT_OK(engine->run(recv.of(i % 2 ? dims_of(i) : Dims{-1, 1})));
      recv.expect(dims_of(i), seed);
    }
  }
}

TEST(messages_arrive_in_order) {
  on_pairs(stream_from_0_to_1);
}

TEST(messages_arrive_in_order_among_threads) {
  for (const Hosts& hosts : {kOneHost, kTwoHosts, Hosts{{2, 1}}})
    on_threads(hosts, stream_from_0_to_1);
}

// Every rank to and from every other one, all at once, with an allreduce now and then.
void everybody_to_everybody(Rank& me) {
  const auto engine = me.start();
  std::vector<std::unique_ptr<Send>> sends;
  std::vector<std::unique_ptr<Recv>> recvs;
  constexpr int kRounds = 8;
  const auto dims = [](int from, int to, int round) {
    return Dims{(from * 7 + to * 3 + round * 11) % 20 * (round == 5 ? 3000 : 10), 2};
  };
  const auto seed = [](int from, int to, int round) {
    return static_cast<uint64_t>(from * 10000 + to * 100 + round);
  };
  for (int round = 0; round < kRounds; ++round) {
    for (int r = 0; r < me.size; ++r) {
      if (r == me.rank) continue;
      sends.push_back(std::make_unique<Send>(r));
      sends.back()->with(dims(me.rank, r, round), seed(me.rank, r, round));
      recvs.push_back(std::make_unique<Recv>(r));
      recvs.back()->of({-1, 2});
      engine->submit(recvs.back().get());
      engine->submit(sends.back().get());
    }
    TestRequest reduce(allreduce_spec("between"));
    add_ones(reduce, me.rank, 1000);
    EXPECT_OK(engine->run(reduce));
    expect_sum_of_ranks(reduce, me.size);
  }
  size_t next = 0;
  for (int round = 0; round < kRounds; ++round)
    for (int r = 0; r < me.size; ++r) {
      if (r == me.rank) continue;
      EXPECT_OK(sends[next]->wait());
      EXPECT_OK(recvs[next]->wait());
      recvs[next++]->expect(dims(r, me.rank, round), seed(r, me.rank, round));
    }
}

TEST(messages_among_everybody) {
  for (const Hosts& hosts :
       {Hosts{{2}}, Hosts{{5}}, Hosts{{2, 2}, true}, Hosts{{1, 3}}, Hosts{{12}}})
    on_processes(hosts, everybody_to_everybody);
}

TEST(messages_among_everybody_as_threads) {
  for (const Hosts& hosts : {Hosts{{3}}, Hosts{{2, 2}}, Hosts{{1, 1, 1}}})
    on_threads(hosts, everybody_to_everybody);
}

// Several threads of each rank, each with a peer of its own to talk to.
TEST(messages_of_several_threads) {
  for (const Hosts& hosts : {Hosts{{3}}, Hosts{{2, 1}}})
    on_threads(hosts, [](Rank& me) {
      const auto engine = me.start();
      std::atomic<int> failures{0};
      std::vector<std::thread> threads;
      for (int r = 0; r < me.size; ++r) {
        if (r == me.rank) continue;
        threads.emplace_back([&, r] {
          for (int i = 0; i < 30; ++i) {
            Send send(r);
            if (!engine->run(send.with({i * 50}, 1)).ok()) ++failures;
          }
        });
        threads.emplace_back([&, r] {
          for (int i = 0; i < 30; ++i) {
            Recv recv(r);
            if (!engine->run(recv.of({i * 50})).ok()) ++failures;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(failures.load(), 0);
    });
}

// Two messages are on their way without a receiver; the third one waits for it.
TEST(messages_wait_for_one_of_two_buffers) {
  on_pairs([](Rank& me) {
    const auto engine = me.start();
    if (me.rank == 1) {
      me.await(0, 1);
      for (uint64_t i = 0; i < 3; ++i) {
        Recv recv(0);
        EXPECT_OK(engine->run(recv.of({10})));
        recv.expect({10}, i);
      }
      return me.meet(1);
    }
    for (uint64_t i = 0; i < 2; ++i) {
      Send send(1);
      EXPECT_OK(engine->run(send.with({10}, i)));
    }
    Send third(1);
    engine->submit(&third.with({10}, 2));
    nap(100);
    EXPECT_EQ(third.place(), -1);
    me.add(0);
    EXPECT_OK(third.wait());
    me.meet(1);
  });
}

// What waits holds up neither collectives nor other messages, before or after it.
TEST(messages_that_wait_hold_up_nothing) {
  for (const Hosts& hosts : {Hosts{{3}}, Hosts{{1, 2}}})
    on_processes(hosts, [](Rank& me) {
      const auto engine = me.start();
      const int next = (me.rank + 1) % 3, before = (me.rank + 2) % 3;
      Recv recv(before), later(before);
      engine->submit(&recv.of({5}));
      engine->submit(&later.of({6}));
      TestRequest reduce(allreduce_spec("meanwhile"));
      add_ones(reduce, me.rank, 10);
      EXPECT_OK(engine->run(reduce));
      Send back(before);
      EXPECT_OK(engine->run(back.with({3}, 3)));
      Recv forth(next);
      EXPECT_OK(engine->run(forth.of({3})));
      forth.expect({3}, 3);
      EXPECT_EQ(recv.place(), -1);
      me.meet(0);
      Send first(next), second(next);
      EXPECT_OK(engine->run(first.with({5}, 1)));
      EXPECT_OK(engine->run(second.with({6}, 2)));
      EXPECT_OK(recv.wait());
      EXPECT_OK(later.wait());
      recv.expect({5}, 1);
      later.expect({6}, 2);
      me.meet(1);
    });
}

TEST(messages_of_several_arrays) {
  on_pairs([](Rank& me) {
    const auto engine = me.start();
    const Envelope envelope{"many words", "complex64"};
    if (me.rank == 0) {
      Send send(1, envelope);
      send.with({2, 3}, 0).with({}, 1).with({0, 4}, 2).with({1, 1, 1, 1, 1, 1, 1, 5}, 3);
      EXPECT_OK(engine->run(send));
    } else {
      Recv recv(0, envelope);
      recv.of({-1, 3}).of({}).of({-1, -1}).of({1, 1, 1, 1, 1, 1, 1, -1});
      EXPECT_OK(engine->run(recv));
      recv.expect({2, 3}, 0, 0);
      recv.expect({}, 1, 1);
      recv.expect({0, 4}, 2, 2);
      recv.expect({5}, 3, 3);
      EXPECT_EQ(recv.tensors[2].shape.dims[1], 4);
    }
    me.meet(0);
  });
}

// Ranks of a process set are counted in it; messages of all sets share the channels.
TEST(messages_in_process_sets) {
  for (const Hosts& hosts : {Hosts{{3}}, Hosts{{1, 2}}})
    on_processes(hosts, [](Rank& me) {
      const auto engine = me.start();
      int id = 0;
      EXPECT_OK(engine->add_process_set({2, 0}, &id));
      const Envelope in_set{"", "float32", id};
      if (me.rank == 0) {
        Send first(0, in_set), second(2);
        EXPECT_OK(engine->run(first.with({2}, 1)));
        EXPECT_OK(engine->run(second.with({2}, 2)));
      } else if (me.rank == 2) {
        Recv first(1, in_set), second(0);
        EXPECT_OK(engine->run(first.of({2})));
        EXPECT_OK(engine->run(second.of({2})));
        first.expect({2}, 1);
        second.expect({2}, 2);
      } else {
        Send send(0, in_set);
        EXPECT_CONTAINS(engine->run(send.with({1})).message(), "expected a member of process set");
      }
      me.meet(0);
    });
}

// A message comes in its turn, like a collective, and ends the step that it fails in.
TEST(messages_come_in_their_turn) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    const int other = 1 - me.rank;
    for (int64_t step = 1; step < 30; ++step) {
      uint64_t tickets[4];
      for (uint64_t& ticket : tickets) ticket = engine->draw_ticket(step);
      Send first(other), second(other);
      Recv recvs[2] = {Recv(other), Recv(other)};
      TestRequest reduce(allreduce_spec("in turn"));
      add_ones(reduce, me.rank, 100);
      first.with({1}, 1);
      second.with({2}, 2);
      TestRequest* const requests[] = {&first, &reduce, &second, &recvs[0].of({1})};
      for (int i = 0; i < 4; ++i) {
        requests[i]->ticket = tickets[i];
        requests[i]->step = step;
      }
      engine->submit(requests[(step + me.rank) % 2 ? 2 : 3]);
      engine->submit(requests[(step + me.rank) % 2 ? 3 : 2]);
      nap(step == 1 ? 30 : 0);
      EXPECT_EQ(second.place(), -1);
      engine->submit(&reduce);
      engine->submit(&first);
      for (TestRequest* request : requests) EXPECT_OK(request->wait());
      recvs[0].expect({1}, 1);
      EXPECT_OK(engine->run(recvs[1].of({2})));
      recvs[1].expect({2}, 2);
    }
  });
}

// Pages of the shared segment: two of the longest message, whatever there was before, and none
// of it after some short ones.
TEST(messages_give_back_what_they_have_outgrown) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    const auto pages = [&] {
      struct stat file{};
      EXPECT_EQ(fstat(me.config.segment_fd, &file), 0);
      return file.st_blocks * 512;
    };
    const int64_t before = pages();
    int64_t bytes = 0;
    for (int64_t n = 1000; n < 2'000'000; n += n / 3) {
      Send send(1);
      Recv recv(0);
      EXPECT_OK(me.rank ? engine->run(recv.of({n})) : engine->run(send.with({n})));
      bytes = 4 * n;
    }
    EXPECT(pages() - before < 2 * bytes + (int64_t{1} << 20));
    me.meet(0);
    for (int i = 0; i < 20; ++i) {
      Send send(1);
      Recv recv(0);
      EXPECT_OK(me.rank ? engine->run(recv.of({10})) : engine->run(send.with({10})));
    }
    EXPECT(pages() - before < (int64_t{2} << 20));
    me.meet(1);
  });
}

TEST(messages_between_hosts_free_what_the_last_did_not_need) {
  LinkMemory memory;
  constexpr size_t kLong = 100'000'000, kShort = 1000;
  memory.give(memory.take(kLong));
  EXPECT_EQ(memory.take(kLong - 1).bytes, kLong);  // the same, which is freed here
  memory.give(memory.take(kLong));
  for (int i = 0; i < 20; ++i) memory.give(memory.take(kShort));
  EXPECT_EQ(memory.idle_bytes(), kShort);
}

// Streams of different tags know nothing of each other: what is not received of one is in nobody's
// way, nor found by another.
void streams_by_tag(Rank& me) {
  const auto engine = me.start();
  const int other = 1 - me.rank;
  const std::vector<int> tags{3, -1, Spec::kUserTags - 1, -Spec::kPipelineTags};
  const auto seed = [](int tag, int i) { return static_cast<uint64_t>(10 * (tag + 5000) + i); };
  for (int tag : tags)
    for (int i = 0; i < 2; ++i) {
      Send send(other, {"", "float32", 0, tag});
      EXPECT_OK(engine->run(send.with({tag % 7 + 10, 3}, seed(tag, i))));
    }
  for (int i = 0; i < 20; ++i) {
    Send send(other);
    Recv recv(other);
    EXPECT_OK(engine->run(send.with({i * 100}, seed(0, i))));
    EXPECT_OK(engine->run(recv.of({-1})));
    recv.expect({i * 100}, seed(0, i));
  }
  for (auto tag = tags.rbegin(); tag != tags.rend(); ++tag)
    for (int i = 0; i < 2; ++i) {
      Recv recv(other, {"", "float32", 0, *tag});
      EXPECT_OK(engine->run(recv.of({-1, 3})));
      recv.expect({*tag % 7 + 10, 3}, seed(*tag, i));
    }
  me.meet(0);
}

TEST(messages_of_different_tags) {
  on_pairs(streams_by_tag);
}

TEST(messages_of_different_tags_among_threads) {
  for (const Hosts& hosts : {kOneHost, kTwoHosts}) on_threads(hosts, streams_by_tag);
}

// Pages of the shared segment: a line per stream, and the slots of two messages, whether each
// stream was emptied or forgotten.
TEST(messages_of_many_tags_take_little_memory) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    const auto pages = [&] {
      struct stat file{};
      EXPECT_EQ(fstat(me.config.segment_fd, &file), 0);
      return file.st_blocks * 512;
    };
    constexpr int kStreams = 40;
    constexpr int64_t kBytes = 100'000;
    const int64_t before = pages();
    for (int tag = -kStreams; tag < kStreams; ++tag) {
      const Envelope envelope{"", "uint8", 0, tag};
      for (uint64_t i = 0; i < 2; ++i) {
        Send send(1, envelope);
        if (me.rank == 0) EXPECT_OK(engine->run(send.with({kBytes}, i)));
      }
      const int turn = tag + kStreams + 1;
      if (me.rank == 0) {
        me.add(0);
        me.await(1, turn);
        continue;
      }
      me.await(0, turn);
      for (uint64_t i = 0; i < 2 && tag >= 0; ++i) {
        Recv recv(0, envelope);
        EXPECT_OK(engine->run(recv.of({kBytes})));
        recv.expect({kBytes}, i);
      }
      if (tag < 0) engine->forget(0, tag);
      me.add(1);
    }
    EXPECT(pages() - before < 3 * kBytes + (int64_t{1} << 20));
    me.meet(2);
  });
}

TEST(messages_count_as_traffic_of_the_sender) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    Traffic::instance().reset();
    for (int i = 0; i < 3; ++i) {
      Send send(1, {"maps"});
      Recv recv(0, {"maps"});
      EXPECT_OK(me.rank ? engine->run(recv.of({25})) : engine->run(send.with({25})));
    }
    const std::string expected = "send 3 300 maps";
    EXPECT_EQ(Traffic::instance().text(), me.rank ? std::string() : expected + '\0');
    me.meet(0);
  });
}

}  // namespace
}  // namespace ringar::test
