// What both ends of a message learn when something is wrong: with the message, with the other rank,
// or with the step that it belongs to.

#include <signal.h>

#include "point_to_point.h"

namespace ringar::test {
namespace {

// Each of these is refused: by the receiver at once, for the sender at a later send, which is not
// sent; and the next message arrives.
TEST(messages_that_are_not_expected_are_refused) {
  struct Case {
    Envelope send;
    Dims dims;
    Envelope recv;
    Dims open;
    const char* at_sender;
    const char* at_receiver;
  };
  const std::vector<Case> cases{
      {{"x"}, {3}, {"y"}, {3}, "send \"x\" of float32[3]", "recv \"y\" of float32[3]"},
      {{""}, {3}, {"y"}, {3}, "send of float32[3]", "recv \"y\" of float32[3]"},
      {{"", "int32"}, {3}, {}, {-1}, "send of int32[3]", "recv of float32[?]"},
      {{}, {3, 2}, {}, {-1, 3}, "send of float32[3,2]", "recv of float32[?,3]"},
      {{}, {3, 1}, {}, {3}, "send of float32[3,1]", "recv of float32[3]"},
      {{"", "float32", 1}, {3}, {}, {3}, "send of float32[3] in process set 1", "float32[3]"},
  };
  on_pairs([&](Rank& me) {
    const auto engine = me.start();
    int id = 0;
    EXPECT_OK(engine->add_process_set({0, 1}, &id));
    for (const Case& test_case : cases) {
      if (me.rank == 0) {
        Send refused(1, test_case.send);
        EXPECT_OK(engine->run(refused.with(test_case.dims)));
        me.meet(1 + static_cast<int>(&test_case - cases.data()));
        if (me.mesh) nap(30);  // the answer is on its way
        Send next(1);
        const Status status = engine->run(next.with({4}));
        EXPECT_EQ(status.code(), RINGAR_MISMATCH);
        EXPECT_CONTAINS(status.message(),
                        "rank 0 | send to rank 1 of float32[4]: this one was not");
        EXPECT_CONTAINS(status.message(), std::string("rank 0: ") + test_case.at_sender);
        EXPECT_CONTAINS(status.message(), test_case.at_receiver);
        EXPECT_OK(engine->run(next));
      } else {
        Recv refused(0, test_case.recv);
        const Status status = engine->run(refused.of(test_case.open));
        EXPECT_EQ(status.code(), RINGAR_MISMATCH);
        EXPECT_CONTAINS(status.message(), "rank 1 | recv");
        EXPECT_CONTAINS(status.message(), std::string("rank 0: ") + test_case.at_sender);
        EXPECT_CONTAINS(status.message(), test_case.at_receiver);
        me.meet(1 + static_cast<int>(&test_case - cases.data()));
        Recv next(0);
        EXPECT_OK(engine->run(next.of({4})));
        next.expect({4});
      }
    }
    EXPECT(!engine->has_failed());
    me.meet(0);
  });
}

// Of many arrays the odd one is in the text.
TEST(messages_of_many_arrays_are_refused_by_the_odd_one) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    if (me.rank == 0) {
      Send send(1);
      for (int64_t i = 0; i < 20; ++i) send.with({i});
      EXPECT_OK(engine->run(send));
    } else {
      Recv recv(0);
      for (int64_t i = 0; i < 20; ++i) recv.of({i == 12 ? 99 : i});
      const Status status = engine->run(recv);
      EXPECT_CONTAINS(status.message(),
                      "rank 0: send of float32[0], float32[1], float32[2], "
                      "float32[3], float32[12] as number 13 (20 arrays)");
      EXPECT_CONTAINS(status.message(), "float32[99] as number 13");
    }
    me.meet(0);
  });
}

// The sender learns of a refusal while it waits for a free buffer.
TEST(messages_that_wait_learn_of_a_refusal) {
  on_pairs([](Rank& me) {
    const auto engine = me.start();
    if (me.rank == 0) {
      for (const char* name : {"wrong", "right"}) {
        Send send(1, {name});
        EXPECT_OK(engine->run(send.with({2}, 1)));
      }
      Send third(1, {"third"});
      engine->submit(&third.with({2}, 2));
      nap(60);
      me.add(0);
      EXPECT_CONTAINS(third.wait().message(), "refused one before it");
      Send fourth(1, {"fourth"});
      EXPECT_OK(engine->run(fourth.with({2}, 3)));
    } else {
      me.await(0, 1);
      for (const char* name : {"right", "right", "fourth"}) {
        Recv recv(0, {name});
        const Status status = engine->run(recv.of({2}));
        if (name[0] == 'f') recv.expect({2}, 3);
        EXPECT_EQ(status.ok() || recv.place() == 0, status.ok());
      }
    }
    me.meet(1);
  });
}

TEST(messages_to_nobody_are_refused) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    for (int peer : {-1, 2, me.rank}) {
      Send send(peer);
      EXPECT_EQ(engine->run(send.with({1})).code(), RINGAR_MISMATCH);
      Recv recv(peer);
      engine->submit(&recv.of({1}));
      EXPECT_CONTAINS(recv.wait().message(),
                      "recv: expected a rank of the process set from 0 to 1 other than this one");
    }
    Send send(1 - me.rank, {"", "float32", 3});
    EXPECT_CONTAINS(engine->run(send.with({1})).message(), "process set 3, which was never added");
    EXPECT(!engine->has_failed());
  });
}

void expect_loss(const Status& status, const std::string& begin, const std::string& why) {
  EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
  EXPECT_CONTAINS(status.message(), begin);
  EXPECT_CONTAINS(status.message(), why);
}

// Rank 1 dies; rank 0 waits for a message of it, or for a free buffer. What it has sent before can
// be received. Rank 2 learns of it by rank 0.
void check_death(bool sends) {
  const auto all = endings(3, [&](Rank& me) {
    const auto engine = me.start();
    if (me.rank == 1) {
      Send last(0);
      EXPECT_OK(engine->run(last.with({7}, 7)));
      me.await(0, 1);
      nap(50);
      kill(getpid(), SIGKILL);
    }
    if (me.rank == 2) {
      me.await(1, 1);
      Recv recv(0);
      return expect_loss(engine->run(recv.of({1})), "rank 2 | recv from rank 0 of float32[1]",
                         "rank 0 has given up: rank 0 | ");
    }
    const auto send = [&] {
      Send request(1);
      return engine->run(request.with({3}));
    };
    Recv unanswered(1), last(1);
    if (sends) {
      EXPECT_OK(send());
      EXPECT_OK(send());
    } else {
      EXPECT_OK(engine->run(last.of({7})));
      engine->submit(&unanswered.of({3}));
    }
    me.add(0);
    const auto start = std::chrono::steady_clock::now();
    if (sends) {
      expect_loss(send(), "rank 0 | send to rank 1", "rank 1 has died");
      EXPECT_OK(engine->run(last.of({7})));
    } else {
      expect_loss(unanswered.wait(), "rank 0 | recv from rank 1", "rank 1 has died");
    }
    EXPECT(seconds_since(start) < 15);
    last.expect({7}, 7);
    EXPECT(engine->has_failed());
    me.add(1);
    // Once broken, it stays so.
    if (sends) expect_loss(send(), "rank 0 | send to rank 1", "rank 1 has died");
    nap(200);
  });
  EXPECT_EQ(all[0].code, 0);
  EXPECT_EQ(all[1].signal, SIGKILL);
  EXPECT_EQ(all[2].code, 0);
}

TEST(messages_of_a_rank_that_dies) {
  check_death(false);
}

TEST(messages_to_a_rank_that_dies) {
  check_death(true);
}

// A rank may send and leave at once; nothing comes after that.
TEST(messages_of_a_rank_that_has_left) {
  for (const Hosts& hosts : {kOneHost, kTwoHosts, Hosts{{2, 1}}})
    on_processes(hosts, [](Rank& me) {
      const auto engine = me.start();
      const int receiver = me.size - 1;
      if (me.rank == 0) {
        Send small(receiver), large(receiver);
        EXPECT_OK(engine->run(small.with({5}, 1)));
        EXPECT_OK(engine->run(large.with({200'000}, 2)));
        // Between hosts there must be somebody to send it to while it leaves.
        if (me.mesh) me.add(0);
        engine->stop();
        if (!me.mesh) me.add(0);
      } else if (me.rank == receiver) {
        me.await(0, 1);
        if (!me.mesh) nap(100);
        Recv small(0), large(0), none(0);
        EXPECT_OK(engine->run(small.of({5})));
        EXPECT_OK(engine->run(large.of({-1})));
        small.expect({5}, 1);
        large.expect({200'000}, 2);
        expect_loss(engine->run(none.of({1})), "rank " + std::to_string(receiver) + " | recv from",
                    "rank 0 has left");
      }
      me.meet(1);
    });
}

TEST(messages_have_a_deadline) {
  on_pairs([](Rank& me) {
    me.config.deadline = 0.4;
    const auto engine = me.start();
    if (me.rank == 1) return me.await(0, 1);
    Recv recv(1, {"loss"});
    const auto start = std::chrono::steady_clock::now();
    const Status status = engine->run(recv.of({-1, 2}));
    EXPECT_EQ(status.code(), RINGAR_DEADLINE);
    EXPECT_CONTAINS(status.message(), "rank 0 | recv \"loss\" from rank 1 of float32[?,2]: ");
    EXPECT_CONTAINS(status.message(), "deadline of 0.4 s, still waiting for rank 1");
    EXPECT(seconds_since(start) < 15);
    EXPECT(engine->has_failed());
    for (int i = 0; i < 3; ++i) {
      Send send(1);
      const Status outcome = engine->run(send.with({4}));
      EXPECT_EQ(outcome.ok(), i < 2);
    }
    me.add(0);
  });
}

// A sender whose messages are forgotten is not told, but waits for room, as for any rank that does
// not receive.
TEST(messages_that_are_forgotten) {
  on_pairs([](Rank& me) {
    me.config.deadline = 0.4;
    const auto engine = me.start();
    const Envelope envelope{"lost", "float32", 0, -7};
    if (me.rank == 1) {
      engine->forget(0, -7);
      return me.meet(0);
    }
    Status last;
    for (int i = 0; i < 3; ++i) {
      Send send(1, envelope);
      last = engine->run(send.with({1000}));
      if (!last.ok()) break;
    }
    EXPECT_EQ(last.code(), RINGAR_DEADLINE);
    EXPECT_CONTAINS(last.message(), "rank 0 | send \"lost\" to rank 1 of pipeline 7 of float32");
    Send send(1);
    EXPECT_OK(engine->run(send.with({1})));
    me.meet(0);
  });
}

// Of a receive that was posted and of a caller that waits.
TEST(messages_end_when_the_engine_stops) {
  on_pairs([](Rank& me) {
    auto engine = me.start();
    if (me.rank == 1) return me.await(0, 1);
    Recv posted(1), behind(1);
    engine->submit(&posted.of({1}));
    engine->submit(&behind.of({1}));
    std::string error;
    std::thread waiting([&] {
      for (int i = 0; i < 3; ++i) {
        Send send(1);
        error = engine->run(send.with({4})).message();
      }
    });
    nap(80);
    const auto start = std::chrono::steady_clock::now();
    engine->stop();
    waiting.join();
    EXPECT(seconds_since(start) < 15);
    const std::string why = "this rank shut ringar down before rank 1 took part";
    EXPECT_CONTAINS(posted.wait().message(), "rank 0 | recv from rank 1");
    EXPECT_CONTAINS(posted.wait().message(), why);
    EXPECT_CONTAINS(behind.wait().message(), why);
    EXPECT_CONTAINS(error, "rank 0 | send to rank 1");
    EXPECT_CONTAINS(error, why);
    Send after(1);
    EXPECT_EQ(engine->run(after.with({1})).code(), RINGAR_NOT_INITIALIZED);
    me.add(0);
  });
}

// What nobody has received of an earlier start is no message of this one.
TEST(messages_of_an_earlier_start_are_gone) {
  on_pairs([](Rank& me) {
    for (int generation = 1; generation < 4; ++generation) {
      me.config.generation = generation;
      const auto engine = me.start();
      const auto seed = static_cast<uint64_t>(generation);
      const Dims dims{100 * generation};
      if (me.rank == 0) {
        for (int tag : {-1, 0})
          for (uint64_t i = 0; i < 2; ++i) {
            Send send(1, {"", "float32", 0, tag});
            EXPECT_OK(engine->run(send.with(dims, seed + 10 * i)));
          }
      } else {
        for (int tag : {0, -1}) {
          Recv recv(0, {"", "float32", 0, tag});
          EXPECT_OK(engine->run(recv.of(dims)));
          recv.expect(dims, seed);
        }
      }
      me.meet(generation);
      engine->stop();
      me.meet(10 + generation);
    }
  });
}

// A step of nothing else is over with it.
TEST(messages_that_fail_alone_in_their_step) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    for (int64_t step = 1; step < 10; ++step) {
      Send send(1, {"one"});
      Recv recv(0, {"other"});
      if (me.rank == 0) {
        EXPECT_OK(engine->run(send.with({2})));
      } else {
        recv.ticket = engine->draw_ticket(step);
        recv.step = step;
        engine->submit(&recv.of({2}));
        EXPECT_EQ(recv.wait().code(), RINGAR_MISMATCH);
      }
      me.meet(static_cast<int>(step));
      if (me.rank == 0) EXPECT_EQ(engine->run(send).code(), RINGAR_MISMATCH);
    }
    EXPECT(!engine->has_failed());
  });
}

// Rank 2 waits for a message that rank 1 would have sent later in its step; rank 1 itself for one
// of rank 2, and for its turn.
TEST(messages_that_fail_take_the_rest_of_their_step_with_them) {
  for (const Hosts& hosts : {Hosts{{3}}, Hosts{{1, 1, 1}}})
    on_threads(hosts, [](Rank& me) {
      const auto engine = me.start();
      if (me.rank == 0) {
        Send send(1, {"one"});
        EXPECT_OK(engine->run(send.with({2})));
      } else if (me.rank == 1) {
        Recv recv(0, {"other"}), waits(2), last(0);
        for (Recv* request : {&recv, &waits, &last}) {
          request->ticket = engine->draw_ticket(1);
          request->step = 1;
          if (request == &waits) engine->draw_ticket(1);
        }
        engine->submit(&waits.of({2}));
        engine->submit(&last.of({2}));
        engine->submit(&recv.of({2}));
        for (Recv* request : {&recv, &waits, &last}) {
          EXPECT_EQ(request->wait().code(), RINGAR_MISMATCH);
          EXPECT_CONTAINS(request->wait().message(), "rank 1 | recv \"other\" from rank 0");
        }
        Send later(2);
        EXPECT_EQ(engine->run(later.with({2})).code(), RINGAR_MISMATCH);
        EXPECT(engine->has_failed());
      } else {
        Recv recv(1);
        const Status status = engine->run(recv.of({2}));
        EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
        EXPECT_CONTAINS(status.message(), "rank 1 has given up: rank 1 | recv \"other\"");
      }
      me.meet(0);
    });
}

// Rank 1 waits for a message that rank 0, where the same collective has failed, will not send.
TEST(messages_end_with_a_collective_of_their_step_that_fails) {
  for (const Hosts& hosts : {kOneHost, kTwoHosts})
    on_threads(hosts, [](Rank& me) {
      const auto engine = me.start();
      TestRequest barrier("barrier dtype=uint8 name=of rank " + std::to_string(me.rank));
      if (me.rank == 0) {
        EXPECT_EQ(engine->run(barrier).code(), RINGAR_MISMATCH);
        EXPECT(!engine->has_failed());
      } else {
        Recv recv(0);
        recv.ticket = engine->draw_ticket(1);
        barrier.ticket = engine->draw_ticket(1);
        recv.step = barrier.step = 1;
        engine->submit(&recv.of({2}));
        engine->submit(&barrier);
        EXPECT_EQ(barrier.wait().code(), RINGAR_MISMATCH);
        EXPECT_EQ(recv.wait().code(), RINGAR_MISMATCH);
        EXPECT(engine->has_failed());
      }
      me.meet(0);
    });
}

}  // namespace
}  // namespace ringar::test
