// Process sets that a rank is in at once: none waits for another one. And how they come and go.

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

using Members = std::vector<int>;

// An allreduce of one set.
class OfSet : public TestRequest {
 public:
  OfSet(int set, const Members& members, int rank, size_t elements)
      : TestRequest("allreduce dtype=float32 op=sum set=" + std::to_string(set) + " name=of set " +
                    std::to_string(set)),
        members_(members) {
    add_ones(*this, rank, elements);
  }
  void expect_sum() const {
    float expected = 0;
    for (int rank : members_) expected += static_cast<float>(rank + 1);
    expect_copies_of(expected, output(0));
  }

 private:
  const Members members_;
};

std::vector<int> added(Engine& engine, const std::vector<Members>& sets) {
  std::vector<int> ids(sets.size());
  for (size_t i = 0; i < sets.size(); ++i) EXPECT_OK(engine.add_process_set(sets[i], &ids[i]));
  return ids;
}

// Each rank issues first what the rank before it issues last.
void run_in_a_circle(Rank& me) {
  const auto engine = me.start();
  const std::vector<Members> sets{{0, 1}, {1, 2}, {0, 2}};
  const std::vector<int> ids = added(*engine, sets);
  const size_t orders[][2] = {{0, 2}, {1, 0}, {2, 1}};
  for (const size_t elements : {kShort, kLong, kShort, kLong}) {
    std::vector<std::unique_ptr<OfSet>> requests;
    for (const size_t i : orders[me.rank]) {
      requests.push_back(std::make_unique<OfSet>(ids[i], sets[i], me.rank, elements));
      engine->submit(requests.back().get());
    }
    for (const auto& request : requests) {
      EXPECT_OK(request->wait());
      request->expect_sum();
    }
  }
  me.meet(0);
}

TEST(process_sets_in_a_circle) {
  on_threads(3, run_in_a_circle);
  on_processes(Hosts{{2, 1}}, run_in_a_circle);
}

// The threads of two sets, which start in another order on each rank.
TEST(process_sets_of_two_threads) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    const Members pair{0, 1};
    const std::vector<int> ids = added(*engine, {pair, pair});
    std::vector<std::thread> threads;
    Status failure[2];
    for (int t = 0; t < 2; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 20; ++i) {
          if (t != me.rank && i % 10 == 0) nap(20);
          OfSet request(ids[static_cast<size_t>(t)], pair, me.rank, i % 2 ? kShort : kLong);
          const Status status = engine->run(request);
          if (!status.ok()) failure[t] = status;
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : failure) EXPECT_OK(status);
    me.meet(0);
  });
}

// A long collective waits for a rank, while those of another set come and go.
TEST(process_sets_overtake_each_other) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    const Members pair{0, 1};
    const std::vector<int> ids = added(*engine, {pair, pair});
    OfSet large(ids[0], pair, me.rank, kLong);
    if (me.rank == 0) engine->submit(&large);
    for (int i = 0; i < 10; ++i) {
      OfSet small(ids[1], pair, me.rank, kShort);
      EXPECT_OK(engine->run(small));
      small.expect_sum();
    }
    EXPECT_EQ(large.place(), -1);
    if (me.rank == 1) engine->submit(&large);
    EXPECT_OK(large.wait());
    large.expect_sum();
    me.meet(0);
  });
}

// Tickets are those of their set.
TEST(process_sets_have_tickets_of_their_own) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    const Members pair{0, 1};
    const std::vector<int> ids = added(*engine, {pair, pair});
    for (int64_t step = 1; step < 15; ++step) {
      OfSet first(ids[0], pair, me.rank, kLong), second(ids[1], pair, me.rank, kShort);
      first.step = second.step = step;
      first.ticket = engine->draw_ticket(step, ids[0]);
      second.ticket = engine->draw_ticket(step, ids[1]);
      engine->submit(&second);
      EXPECT_OK(second.wait());
      engine->submit(&first);
      EXPECT_OK(first.wait());
      first.expect_sum();
      second.expect_sum();
    }
  });
}

// Rank 1 is in a collective that rank 0 drops, since one of its set with rank 2 has failed.
TEST(process_sets_hear_of_a_step_that_has_failed) {
  on_processes(3, [](Rank& me) {
    const auto engine = me.start();
    const std::vector<Members> sets{{0, 1}, {0, 2}};
    const std::vector<int> ids = added(*engine, sets);
    const auto start = std::chrono::steady_clock::now();
    OfSet dropped(ids[0], sets[0], me.rank, kLong), mismatch(ids[1], sets[1], me.rank, kLong);
    if (me.rank == 1) {
      const Status status = engine->run(dropped);
      EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
      EXPECT_CONTAINS(status.message(), "rank 0 has given up: rank 0 | allreduce");
    } else if (me.rank == 2) {
      OfSet other(ids[1], sets[1], me.rank, kShort);
      EXPECT_EQ(engine->run(other).code(), RINGAR_MISMATCH);
    } else {
      mismatch.step = dropped.step = 1;
      mismatch.ticket = engine->draw_ticket(1, ids[1]);
      dropped.ticket = engine->draw_ticket(1, ids[0]);
      // Or what is issued next would meet what rank 1 still has of the step.
      mismatch.on_complete = [&] { EXPECT(engine->process_set(ids[0])->is_broken()); };
      engine->submit(&mismatch);
      EXPECT_EQ(mismatch.wait().code(), RINGAR_MISMATCH);
      engine->submit(&dropped);
      EXPECT_EQ(dropped.wait().code(), RINGAR_MISMATCH);
      OfSet next(ids[0], sets[0], me.rank, kShort);
      EXPECT_EQ(engine->run(next).message(), mismatch.wait().message());
    }
    EXPECT(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    me.meet(0);
  });
}

TEST(process_sets_are_removed_behind_what_was_issued) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    const Members pair{0, 1};
    for (int i = 0; i < 6; ++i) {
      const int id = added(*engine, {pair})[0];
      std::vector<std::unique_ptr<OfSet>> requests;
      for (int k = 0; k < 4; ++k) {
        requests.push_back(std::make_unique<OfSet>(id, pair, me.rank, k % 2 ? kShort : kLong));
        engine->submit(requests.back().get());
      }
      EXPECT_OK(engine->remove_process_set(id));
      for (const auto& request : requests) {
        EXPECT_OK(request->wait());
        request->expect_sum();
      }
    }
  });
}

// One thread is in a collective of the set that another one removes.
TEST(process_sets_are_removed_while_a_thread_uses_them) {
  on_threads(1, [](Rank& me) {
    const auto engine = me.start();
    for (int i = 0; i < 20; ++i) {
      const int id = added(*engine, {{0}})[0];
      std::atomic<bool> began{false};
      Status last;
      std::thread user([&] {
        do {
          TestRequest request("allgather dtype=uint8 set=" + std::to_string(id) + " name=used");
          request.add(Bytes(100), {100}, Output::kAllocated, 0);
          request.on_allocate = [&] {
            if (!began.exchange(true)) nap(20);
          };
          last = engine->run(request);
        } while (last.ok());
      });
      while (!began.load()) nap(1);
      EXPECT_OK(engine->remove_process_set(id));
      user.join();
      EXPECT_EQ(last.code(), RINGAR_MISMATCH);
      EXPECT_CONTAINS(last.message(), "never added or is removed");
    }
  });
}

// What a thread has found stays while it looks at it.
TEST(process_sets_are_removed_while_a_thread_asks_for_them) {
  on_threads(1, [](Rank& me) {
    const auto engine = me.start();
    std::atomic<int> id{0};
    int errors = 0;
    std::thread user([&] {
      for (int key = 0; key >= 0; key = id.load()) {
        const auto set = engine->process_set(key);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (set && set->size() != 1) ++errors;
      }
    });
    for (int i = 0; i < 300; ++i) {
      id.store(added(*engine, {{0}})[0]);
      EXPECT_OK(engine->remove_process_set(id.load()));
    }
    id.store(-1);
    user.join();
    EXPECT_EQ(errors, 0);
  });
}

}  // namespace
}  // namespace ringar::test
