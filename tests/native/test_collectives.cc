// Every algorithm on 1 to 8 ranks, processes and threads, with sizes of all magnitudes, against the
// serial reference; one in five collectives is spoiled by one rank, and the next must work.

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "algorithms/shared_memory.h"
#include "check.h"
#include "plans.h"
#include "ranks.h"

namespace ringar::test {
namespace {

constexpr int kPlans = kSanitized ? 40 : 150;
constexpr int64_t kManyBlocks = kSanitized ? 1 << 20 : 4 << 20;  // elements

void run_random_plans(const Rank& me, uint64_t seed, size_t largest) {
  const auto engine = me.start();
  for (int i = 0; i < kPlans; ++i)
    run_plan(random_plan(seed * 1000 + static_cast<uint64_t>(i), all_ranks(me.size), 0, largest),
             me.rank, *engine);
}

TEST(collectives_of_processes) {
  for (int size : {1, 2, 3, 4, 5, 8})
    on_processes(size, [&](Rank& me) {
      run_random_plans(me, static_cast<uint64_t>(size), size > 4 ? 200'000 : 900'000);
    });
}

TEST(collectives_of_threads) {
  for (int size : {1, 2, 3, 4, 8})
    on_threads(size, [&](Rank& me) {
      run_random_plans(me, 10 + static_cast<uint64_t>(size), size > 4 ? 200'000 : 600'000);
    });
}

// As many ranks as a large host has cores, most of them asleep on this one.
TEST(collectives_of_many_ranks) {
  for (int size : {16, 33, 64})
    on_processes(size, [](Rank& me) {
      const auto engine = me.start();
      for (uint64_t seed = 0; seed < 8; ++seed)
        run_plan(random_plan(7000 + seed, all_ranks(me.size), 0, 100'000), me.rank, *engine);
    });
}

// The sizes at which an algorithm changes its way: one exchange or blocks, one block or two.
TEST(collectives_at_the_edges_of_their_sizes) {
  on_threads(3, [](Rank& me) {
    const auto engine = me.start();
    const Tuning tuning = tuning_for(3);
    const size_t slice = tuning.slice_bytes;
    uint64_t seed = 0;
    for (size_t edge : {tuning.small_allreduce_bytes, slice, 3 * slice, 6 * slice, size_t{64}})
      for (int64_t near : {-4, 0, 4})
        for (Collective collective :
             {Collective::kAllreduce, Collective::kReducescatter, Collective::kAllgather,
              Collective::kBroadcast, Collective::kAlltoall}) {
          Plan plan = random_plan(++seed, all_ranks(me.size), 0, 64);
          plan.collective = collective;
          plan.dtype = DataType::kInt32;
          plan.prescale = plan.postscale = 1;
          plan.where = Output::kApart;
          if (collective == Collective::kAllgather || collective == Collective::kAlltoall)
            plan.where = Output::kAllocated;
          plan.twist = Twist::kNone;
          plan.tails = {{}};
          plan.rows.assign(3, {(static_cast<int64_t>(edge) + near) / 4});
          plan.splits.assign(3, {});
          run_plan(plan, me.rank, *engine);
        }
  });
}

// Many blocks, in place on all ranks, on none, and on one alone.
TEST(collectives_of_many_blocks) {
  on_processes(3, [](Rank& me) {
    const auto engine = me.start();
    for (int64_t elements : {kManyBlocks - 1, kManyBlocks + 1})
      for (int in_place : {-1, 0, 1}) {
        Plan plan = random_plan(static_cast<uint64_t>(elements), all_ranks(me.size), 0, 64);
        plan.collective = Collective::kAllreduce;
        plan.dtype = DataType::kBfloat16;
        plan.op = ReduceOp::kSum;
        plan.prescale = plan.postscale = 1;
        plan.where = in_place == 1 || in_place == me.rank ? Output::kInPlace : Output::kApart;
        plan.twist = Twist::kNone;
        plan.tails = {{}, {}};
        plan.rows.assign(3, {7, elements - 7});
        plan.splits.assign(3, {});
        run_plan(plan, me.rank, *engine);
      }
  });
}

void run_process_sets(const Rank& me) {
  const auto engine = me.start();
  const std::vector<std::vector<int>> sets{{3, 1}, {0, 2, 1}, {2}, {1, 3}, {0, 1, 2, 3}};
  std::vector<int> ids;
  for (const auto& set : sets) {
    int id = -1;
    EXPECT_OK(engine->add_process_set(set, &id));
    ids.push_back(id);
  }
  for (uint64_t i = 0; i < 60; ++i) {
    const size_t set = i % sets.size();
    run_plan(random_plan(900 + i, sets[set], ids[set], 200'000), me.rank, *engine);
  }
  for (size_t set : {1u, 0u}) EXPECT_OK(engine->remove_process_set(ids[set]));
  for (uint64_t i = 0; i < 30; ++i) {
    const size_t set = 2 + i % 3;
    run_plan(random_plan(1900 + i, sets[set], ids[set], 200'000), me.rank, *engine);
  }
}

TEST(collectives_of_process_sets_as_processes) {
  on_processes(4, run_process_sets);
}
TEST(collectives_of_process_sets_as_threads) {
  on_threads(4, run_process_sets);
}

TEST(process_sets_refuse_strangers_and_the_removed) {
  on_threads(3, [](Rank& me) {
    const auto engine = me.start();
    int id = -1;
    EXPECT_OK(engine->add_process_set({2, 0}, &id));
    const std::string spec = "barrier set=" + std::to_string(id) + " name=x";
    TestRequest member(spec);
    const Status status = engine->run(member);
    if (me.rank == 1) {
      EXPECT_EQ(status.code(), RINGAR_MISMATCH);
      EXPECT_CONTAINS(status.message(), "rank 1 | expected a member of process set 1");
      EXPECT_CONTAINS(status.message(), "ranks [2, 0]");
    } else {
      EXPECT_OK(status);
    }
    EXPECT_OK(engine->remove_process_set(id));
    TestRequest request(spec);
    const Status removed = engine->run(request);
    EXPECT_EQ(removed.code(), RINGAR_MISMATCH);
    EXPECT_CONTAINS(removed.message(), "was never added or is removed");
    EXPECT_EQ(engine->remove_process_set(id).code(), RINGAR_MISMATCH);
    EXPECT_EQ(engine->remove_process_set(0).code(), RINGAR_MISMATCH);
  });
}

TEST(process_sets_must_be_the_same_on_all_ranks) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    int id = -1;
    const Status status = engine->add_process_set(
        me.rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0}, &id);
    EXPECT_EQ(status.code(), RINGAR_MISMATCH);
    EXPECT_CONTAINS(status.message(), "rank 0: add_process_set \"[0, 1]\"");
    EXPECT_CONTAINS(status.message(), "rank 1: add_process_set \"[1, 0]\"");
    EXPECT_OK(engine->add_process_set({1, 0}, &id));
    EXPECT_EQ(id, 1);
  });
}

// A removed set's memory is given back, and another set must not find traces in its own.
TEST(process_sets_come_and_go) {
  on_processes(3, [](Rank& me) {
    const auto engine = me.start();
    for (uint64_t i = 0; i < 25; ++i) {
      int id = -1;
      EXPECT_OK(engine->add_process_set({2, 1, 0}, &id));
      run_plan(random_plan(3000 + i, {2, 1, 0}, id, 100'000), me.rank, *engine);
      EXPECT_OK(engine->remove_process_set(id));
    }
  });
}

// Recorded by all ranks at once, and started and stopped while they work.
TEST(collectives_with_a_timeline) {
  on_threads(3, [](Rank& me) {
    const auto engine = me.start();
    const std::string path = "/tmp/ringar-timeline-" + std::to_string(getpid());
    for (uint64_t i = 0; i < 20; ++i) {
      if (me.rank == 0 && i % 5 == 0) EXPECT_OK(Timeline::instance().start(path, 0));
      run_plan(random_plan(7000 + i, all_ranks(me.size), 0, 100'000), me.rank, *engine);
      if (me.rank == 1 && i % 7 == 0) Timeline::instance().stop();
    }
    me.meet(0);
    if (me.rank == 0) EXPECT_OK(Timeline::instance().start(path, 0));
    me.meet(1);
    run_plan(random_plan(8000, all_ranks(me.size), 0, 100'000), me.rank, *engine);
    me.meet(2);
    if (me.rank != 0) return;
    Timeline::instance().stop();
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    unlink(path.c_str());
    EXPECT_EQ(text.substr(0, 2), "[\n");
    EXPECT_EQ(text.substr(text.size() - 4), "}\n]\n");
    EXPECT_CONTAINS(text, "\"ph\":\"X\"");
  });
}

TEST(many_ranks) {
  on_processes(24, [](Rank& me) {
    const auto engine = me.start();
    for (uint64_t i = 0; i < 12; ++i)
      run_plan(random_plan(5000 + i, all_ranks(me.size), 0, 100'000), me.rank, *engine);
  });
}

// Also the memory of the times before is given back.
TEST(start_and_stop_again_and_again) {
  on_processes(3, [](Rank& me) {
    int64_t blocks_of_one = 0;
    for (int i = 0; i < 20; ++i) {
      run_random_plans(me, 0, 64);
      struct stat file{};
      EXPECT_EQ(fstat(me.config.segment_fd, &file), 0);
      if (i == 0) blocks_of_one = file.st_blocks;
      EXPECT(file.st_blocks <= 3 * blocks_of_one);
    }
  });
}

TEST(many_small_collectives_in_a_row) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    for (int i = 0; i < 10'000; ++i) {
      TestRequest request(allreduce_spec("small"));
      add_ones(request, me.rank, 3);
      EXPECT_OK(engine->run(request));
      expect_sum_of_ranks(request, me.size);
    }
  });
}

}  // namespace
}  // namespace ringar::test
