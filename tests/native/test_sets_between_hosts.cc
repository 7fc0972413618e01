// Process sets that come and go on several hosts, engines that do, and what is left of them.

#include <cstdlib>

#include "check.h"
#include "plans.h"
#include "ranks.h"

namespace ringar::test {
namespace {

std::string in_set(int id, const std::string& spec) {
  return spec + " set=" + std::to_string(id) + " name=x";
}

Status barrier(Engine& engine, int id = 0) {
  TestRequest request(in_set(id, "barrier"));
  return engine.run(request);
}

// Many more than there are tags for at a time. A removed set is not taken for a later one: when a
// rank leaves that has done its part, others, who still wait for what it has sent, go on.
TEST(between_hosts_process_sets_come_and_go) {
  on_processes(Hosts{{2, 1, 1}}, [](Rank& me) {
    const auto engine = me.start();
    int id = -1;
    for (uint64_t i = 0; i < 100; ++i) {
      const std::vector<int> ranks = i % 2 ? std::vector<int>{3, 0, 2} : std::vector<int>{1, 2};
      EXPECT_OK(engine->add_process_set(ranks, &id));
      run_plan(random_plan_between_hosts(6000 + i, ranks, id, 20'000), me.rank, *engine);
      if (i < 99) EXPECT_OK(engine->remove_process_set(id));
    }
    EXPECT_EQ(id, 100);
    if (me.rank == 1) return me.meet(0);
    // Only rank 0 has something to give: it is done as soon as it has sent to rank 2, which is slow
    // to tell rank 3.
    const size_t elements = me.rank == 0 ? 1000 : 0;
    TestRequest request(in_set(id, "allgather dtype=float32"));
    request.add(Bytes(4 * elements), {static_cast<int64_t>(elements)}, Output::kAllocated, 0);
    if (me.rank == 2) request.on_allocate = [] { nap(300); };
    EXPECT_OK(engine->run(request));
    EXPECT_EQ(request.output(0).size(), 4000u);
    engine->stop();
    me.meet(0);
  });
}

TEST(between_hosts_process_sets_are_as_many_as_there_are_tags) {
  on_processes(Hosts{{1, 1}}, [](Rank& me) {
    const auto engine = me.start();
    std::vector<int> ids(InterNodeCommunicator::kMostSets - 1);
    for (int& id : ids) EXPECT_OK(engine->add_process_set({1, 0}, &id));
    int id = -1;
    const Status refused = engine->add_process_set({0, 1}, &id);
    EXPECT_EQ(refused.code(), RINGAR_UNSUPPORTED);
    EXPECT_CONTAINS(refused.message(), "rank " + std::to_string(me.rank) + " | ");
    EXPECT_CONTAINS(refused.message(), "at most 511 process sets at a time");
    EXPECT_OK(engine->remove_process_set(ids[500]));
    EXPECT_OK(engine->add_process_set({0, 1}, &id));
    EXPECT_OK(barrier(*engine, id));
    EXPECT_OK(barrier(*engine, ids.back()));
    EXPECT_EQ(barrier(*engine, ids[500]).code(), RINGAR_MISMATCH);
  });
}

// What was sent in it may still be on its way, and must not come out in another set.
TEST(between_hosts_a_broken_process_set_stays) {
  on_processes(Hosts{{1, 1, 1}}, [](Rank& me) {
    me.config.deadline = 3;  // which a set that is added must keep
    const auto engine = me.start();
    int id = -1;
    EXPECT_OK(engine->add_process_set({0, 1}, &id));
    if (me.rank == 0) EXPECT_EQ(barrier(*engine, id).code(), RINGAR_DEADLINE);
    me.meet(0);
    const Status refused = engine->remove_process_set(id);
    // Who has to wait for the others hears that rank 0 has given up.
    const bool has_waited = refused.code() == RINGAR_PEER_LOST;
    EXPECT(has_waited || refused.code() == RINGAR_MISMATCH);
    EXPECT_CONTAINS(refused.message(), has_waited
                                           ? "rank 0 has given up: rank 0 | barrier"
                                           : "rank 0: remove_process_set \"1\", refused: expected");
    me.meet(1);
  });
}

// What a rank says when it leaves waits in the network for whoever starts again.
TEST(between_hosts_control_messages_of_an_engine_before) {
  on_processes(Hosts{{1, 1}}, [](Rank& me) {
    for (int generation = 1; generation < 4; ++generation) {
      me.config.generation = generation;
      const auto engine = me.start();
      for (int i = 0; i < 2 * generation; ++i) {
        if (me.rank == 1) nap(60);
        EXPECT_OK(barrier(*engine));
      }
      if (me.rank == 1) me.await(generation, 1);
      engine->stop();
      me.meet(generation);
    }
  });
}

TEST(between_hosts_all_ranks_refuse_several_arrays_of_an_all_to_all) {
  for (const Hosts& hosts : {Hosts{{2}}, Hosts{{1, 1}}, Hosts{{1, 2}}})
    on_processes(hosts, [](Rank& me) {
      const auto engine = me.start();
      for (int offenders : {1, me.size}) {
        TestRequest request("alltoall dtype=uint8 name=x");
        for (int i = 0; i < (me.rank < offenders ? 2 : 1); ++i)
          request.add(Bytes(12), {12}, Output::kAllocated, 0);
        const Status status = engine->run(request);
        EXPECT_EQ(status.code(), RINGAR_MISMATCH);
        EXPECT_CONTAINS(status.message(), "refused: expected one array, received 2");
        EXPECT_OK(barrier(*engine));
      }
    });
}

// Hosts whose send buffers hold different amounts take the same way.
TEST(between_hosts_of_different_sizes_with_small_buffers) {
  for (const Hosts& hosts : {Hosts{{1, 2}}, Hosts{{3, 1, 2}, true}})
    on_processes(hosts, [](Rank& me) {
      setenv("RINGAR_TUNING", "slice=4096", 1);
      const auto engine = me.start();
      for (size_t bytes :
           {4080, 4096, 8160, 8176, 8180, 8192, 8196, 12272, 12276, 12288, 12292, 16384, 16388}) {
        TestRequest request(allreduce_spec("around"));
        add_ones(request, me.rank, bytes / sizeof(float));
        EXPECT_OK(engine->run(request));
        expect_sum_of_ranks(request, me.size);
      }
      for (uint64_t seed = 0; seed < 20; ++seed)
        run_plan(random_plan_between_hosts(500 + seed, all_ranks(me.size), 0, 40'000), me.rank,
                 *engine);
    });
}

TEST(between_hosts_with_several_streams) {
  for (const Hosts& hosts : {Hosts{{1, 1}}, Hosts{{2, 1, 1, 1}}})
    on_processes(hosts, [](Rank& me) {
      setenv("RINGAR_TUNING", "streams=1", 1);
      const auto engine = me.start();
      for (uint64_t seed = 0; seed < 12; ++seed)
        run_plan(random_plan_between_hosts(700 + seed, all_ranks(me.size), 0, 200'000), me.rank,
                 *engine);
    });
}

// By MPI the ranks compare them before (ringar/job/mpi.py).
TEST(between_hosts_settings_that_differ_end_the_start) {
  for (const char* setting : {"streams=1", "chunk=32000"})
    on_processes(Hosts{{1, 2}}, [&](Rank& me) {
      if (me.rank == 0) setenv("RINGAR_TUNING", setting, 1);
      const auto engine = me.engine();
      const Status status = engine->start();
      EXPECT_EQ(status.code(), RINGAR_MISMATCH);
      EXPECT_CONTAINS(status.message(), std::string(", RINGAR_TUNING=") + setting);
      EXPECT_CONTAINS(status.message(), "\nRanks start with the same version of ringar");
    });
}

}  // namespace
}  // namespace ringar::test
