// Every collective on ranks of several hosts, against the serial reference; one in five is spoiled
// by one rank, and the next must work.

#include <signal.h>

#include <chrono>
#include <thread>

#include "algorithms/ring.h"
#include "check.h"
#include "plans.h"
#include "ranks.h"

namespace ringar::test {
namespace {

constexpr int kPlansBetweenHosts = kSanitized ? 25 : 80;
constexpr int64_t kLarge = kSanitized ? 100'000 : 600'000;

void run_plans_between_hosts(const Rank& me, uint64_t seed, size_t largest) {
  const auto engine = me.start();
  for (int i = 0; i < kPlansBetweenHosts; ++i)
    run_plan(random_plan_between_hosts(seed * 1000 + static_cast<uint64_t>(i), all_ranks(me.size),
                                       0, largest),
             me.rank, *engine);
}

TEST(between_hosts_of_one_rank_each) {
  for (size_t hosts : {2, 3, 4, 5, 6, 7, 8})
    on_processes(Hosts{std::vector<int>(hosts, 1)},
                 [&](Rank& me) { run_plans_between_hosts(me, 100 + hosts, 700'000); });
}

TEST(between_hosts_of_several_ranks) {
  for (const Hosts& hosts : {Hosts{{2, 2}}, Hosts{{2, 2}, true}, Hosts{{3, 3}}, Hosts{{2, 2, 2}}})
    on_processes(hosts, [&](Rank& me) {
      run_plans_between_hosts(me, 200 + static_cast<uint64_t>(me.size), 900'000);
    });
}

// Ranks that had measured different sizes would wait for each other.
TEST(between_hosts_that_measure_their_network) {
  for (const Hosts& hosts : {Hosts{{1, 1, 1}}, Hosts{{3, 1}}, Hosts{{1, 2, 1, 1}}})
    on_processes(hosts, [&](Rank& me) {
      me.config.recursive_doubling_count = 0;
      run_plans_between_hosts(me, 500 + static_cast<uint64_t>(me.size), 300'000);
    });
}

// Ranks in no rail, hosts of a single rank beside others.
TEST(between_hosts_of_different_sizes) {
  for (const Hosts& hosts : {Hosts{{1, 2}}, Hosts{{3, 1}}, Hosts{{2, 3}, true}, Hosts{{1, 3, 2}}})
    on_processes(hosts, [&](Rank& me) {
      run_plans_between_hosts(me, 300 + static_cast<uint64_t>(me.size), 900'000);
    });
}

TEST(between_hosts_of_threads) {
  for (const Hosts& hosts : {Hosts{{1, 1}}, Hosts{{2, 2}}, Hosts{{1, 2}}})
    on_threads(hosts, [&](Rank& me) {
      run_plans_between_hosts(me, 400 + static_cast<uint64_t>(me.size), 300'000);
    });
}

// Many blocks in many lanes, in place and not.
TEST(between_hosts_large_arrays) {
  for (const Hosts& hosts : {Hosts{{1, 1, 1}}, Hosts{{2, 2}}, Hosts{{2, 1, 2}}})
    on_processes(hosts, [](Rank& me) {
      const auto engine = me.start();
      for (const char* options :
           {"", "wire=bfloat16 ", "algorithm=ring ", "algorithm=halving_doubling ",
            "algorithm=halving_doubling wire=float16 ", "algorithm=hierarchical "})
        for (Output where : {Output::kApart, Output::kInPlace}) {
          Plan plan = random_plan_between_hosts(7, all_ranks(me.size), 0, 64);
          plan.collective = Collective::kAllreduce;
          plan.dtype = DataType::kFloat32;
          plan.op = ReduceOp::kSum;
          plan.prescale = where == Output::kApart ? 2 : 0.5;
          plan.postscale = 1 / plan.prescale;
          plan.where = where;
          plan.twist = Twist::kNone;
          plan.options = options;
          plan.tails = {{}, {3}, {}};
          plan.rows.assign(plan.ranks(), {5, kLarge + 1, 3 * kLarge / 2 + 17});
          plan.splits.assign(plan.ranks(), {});
          run_plan(plan, me.rank, *engine);
        }
    });
}

// In a hierarchy, too, which takes this way up to the size in the table.
TEST(between_hosts_halving_and_doubling_in_rails) {
  for (const Hosts& hosts : {Hosts{{2, 2, 2, 2}}, Hosts{{2, 1, 3, 1, 2}}})
    on_processes(hosts, [](Rank& me) {
      const std::vector<int64_t> short_arrays(9, 64), all_others(9, int64_t{1} << 40);
      me.config.recursive_doubling_bytes = short_arrays.data();
      me.config.halving_doubling_bytes = all_others.data();
      me.config.recursive_doubling_count = static_cast<int32_t>(short_arrays.size());
      const auto engine = me.start();
      for (const char* options : {"", "wire=bfloat16 ", "algorithm=hierarchical "})
        for (int64_t elements : {17, 1001, static_cast<int>(kLarge)}) {
          Plan plan = random_plan_between_hosts(8, all_ranks(me.size), 0, 64);
          plan.collective = Collective::kAllreduce;
          plan.dtype = DataType::kFloat32;
          plan.op = ReduceOp::kSum;
          plan.prescale = 0.5;
          plan.postscale = 2;
          plan.where = elements % 2 ? Output::kApart : Output::kInPlace;
          plan.twist = Twist::kNone;
          plan.options = options;
          plan.tails = {{}, {3}};
          plan.rows.assign(plan.ranks(), {5, elements});
          plan.splits.assign(plan.ranks(), {});
          run_plan(plan, me.rank, *engine);
        }
    });
}

// What rank r has of segment `segment` after all rounds down to `fewest` kept segments: the tree
// that algorithms/halving_doubling.h describes.
float tree_sum(const std::vector<float>& of_ranks, int r, int segment, int fewest) {
  const int n = static_cast<int>(of_ranks.size());
  std::vector<int> edges{n};
  while (edges.back() > fewest) edges.push_back((edges.back() + 1) / 2);
  if (edges.size() == 1) return of_ranks[static_cast<size_t>(r)];
  const int segments = edges[edges.size() - 2], half = edges.back();
  const float sum = tree_sum(of_ranks, r, segment, segments);
  if ((segment - r + n) % n >= segments - half) return sum;
  return sum + tree_sum(of_ranks, (r - half + n) % n, segment, segments);
}

// Numbers whose sum depends on the order of additions, in segments of 16 each, and some blocks.
TEST(between_hosts_halving_and_doubling_adds_in_a_fixed_order) {
  for (size_t hosts : {2, 3, 4, 5, 6, 7, 8, 9})
    on_processes(Hosts{std::vector<int>(hosts, 1)}, [](Rank& me) {
      const auto engine = me.start();
      const auto n = static_cast<size_t>(me.size);
      const size_t elements = 16 * n - 3;
      const auto value = [](size_t rank, size_t i) {
        const auto x = static_cast<uint32_t>((rank + 1) * 2654435761u + i * 40503u * 977u);
        return static_cast<float>(x % 100'003) / 7.0f - 7000.0f;
      };
      for (int again = 0; again < 3; ++again) {
        TestRequest request("allreduce dtype=float32 op=sum algorithm=halving_doubling name=order");
        Bytes bytes(elements * sizeof(float));
        for (size_t i = 0; i < elements; ++i)
          reinterpret_cast<float*>(bytes.data())[i] = value(static_cast<size_t>(me.rank), i);
        request.add(bytes, {static_cast<int64_t>(elements)}, Output::kApart, bytes.size());
        EXPECT_OK(engine->run(request));
        const Bytes output = request.output(0);
        for (size_t i = 0; i < elements; ++i) {
          std::vector<float> of_ranks;
          for (size_t r = 0; r < n; ++r) of_ranks.push_back(value(r, i));
          const int owner = static_cast<int>(i / 16);
          EXPECT_EQ(reinterpret_cast<const float*>(output.data())[i],
                    tree_sum(of_ranks, owner, owner, 1));
        }
      }
    });
}

// Ranks of one host, of which one wants the link and the other does not: both learn it there.
TEST(between_hosts_ranks_of_one_host_that_disagree_on_the_link) {
  on_processes(Hosts{{2, 1}}, [](Rank& me) {
    const auto engine = me.start();
    int id = -1;
    EXPECT_OK(engine->add_process_set({0, 1}, &id));
    for (const char* algorithm : {"ring", "recursive_doubling", "halving_doubling"}) {
      if (me.rank == 2) continue;
      const std::string prefix = me.rank == 0 ? "algorithm=" + std::string(algorithm) + " " : "";
      TestRequest request("allreduce dtype=float32 op=sum set=" + std::to_string(id) + " " +
                          prefix + "name=flat");
      add_ones(request, me.rank, 1000);
      const Status status = engine->run(request);
      EXPECT_EQ(status.code(), RINGAR_MISMATCH);
      EXPECT_CONTAINS(status.message(), "algorithm=" + std::string(algorithm));
    }
    EXPECT_OK(engine->remove_process_set(id));
  });
}

// Sets within a host, across hosts, of one rank, in any order.
TEST(between_hosts_process_sets) {
  on_processes(Hosts{{2, 1, 2}}, [](Rank& me) {
    const auto engine = me.start();
    const std::vector<std::vector<int>> sets{{0, 1}, {4, 0, 2}, {3}, {1, 3}, {4, 3, 2, 1, 0}};
    std::vector<int> ids;
    for (const auto& set : sets) {
      ids.push_back(-1);
      EXPECT_OK(engine->add_process_set(set, &ids.back()));
    }
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const size_t index = seed % sets.size();
      run_plan(random_plan_between_hosts(9000 + seed, sets[index], ids[index], 200'000), me.rank,
               *engine);
    }
    for (int id : ids) EXPECT_OK(engine->remove_process_set(id));
  });
}

// float32 that is not exact in 16 bits: within what one rounding per hop may do.
TEST(between_hosts_compressed_sums_are_near) {
  on_processes(Hosts{{2, 2, 1}}, [](Rank& me) {
    const auto engine = me.start();
    for (const char* wire : {"float16", "bfloat16"})
      for (size_t elements : {100, 300'000}) {
        TestRequest request("allreduce dtype=float32 op=sum wire=" + std::string(wire) +
                            " name=near");
        Bytes bytes(elements * sizeof(float));
        auto* values = reinterpret_cast<float*>(bytes.data());
        for (size_t i = 0; i < elements; ++i)
          values[i] = 1.0f + static_cast<float>(i % 1000) / 1000 + static_cast<float>(me.rank);
        request.add(bytes, {static_cast<int64_t>(elements)}, Output::kApart, bytes.size());
        EXPECT_OK(engine->run(request));
        const Bytes output = request.output(0);
        const auto* sums = reinterpret_cast<const float*>(output.data());
        const float unit = wire[0] == 'f' ? 1.0f / 2048 : 1.0f / 256;
        for (size_t i = 0; i < elements; ++i) {
          const float exact = 5 * (1.0f + static_cast<float>(i % 1000) / 1000) + 10;
          EXPECT(std::abs(sums[i] - exact) <= 3 * unit * exact);
        }
      }
  });
}

// What a large allreduce ends with when a rank is missing.
std::string failure_of(Engine& engine, int rank) {
  TestRequest request(allreduce_spec("lost"));
  add_ones(request, rank, 300'000);
  const Status status = engine.run(request);
  EXPECT(status.code() == RINGAR_PEER_LOST || status.code() == RINGAR_DEADLINE);
  EXPECT_CONTAINS(status.message(), "rank " + std::to_string(rank) + " | allreduce \"lost\"");
  return status.message();
}

// Each rank says what it has open, also one that another rank's deadline has ended: it passes on
// what that rank has said.
void expect_names(const std::string& failure, int rank) {
  EXPECT_CONTAINS(failure, "waiting for rank 2");
  EXPECT_CONTAINS(failure, " of process set 0. Rank " + std::to_string(rank) + " has open: ");
  // Rank 1 has no partner on the other hosts.
  if (failure.find("Rank 1") == std::string::npos)
    EXPECT_CONTAINS(failure, " from rank 2 (collectives; 0 of ");
}

// A rank that never comes is named on all hosts, also to those that wait for somebody else.
TEST(between_hosts_a_late_rank_is_named) {
  on_processes(Hosts{{2, 1, 1}}, [](Rank& me) {
    me.config.deadline = 2.5;
    const auto engine = me.start();
    if (me.rank == 2)
      me.await(0, 3);
    else
      expect_names(failure_of(*engine, me.rank), me.rank);
    me.add(0);
    me.await(0, 4);
  });
}

TEST(between_hosts_a_rank_that_leaves) {
  on_processes(Hosts{{1, 2}}, [](Rank& me) {
    auto engine = me.start();
    TestRequest request(allreduce_spec("fine"));
    add_ones(request, me.rank, 1000);
    EXPECT_OK(engine->run(request));
    expect_sum_of_ranks(request, me.size);
    if (me.rank == 1)
      engine->stop();
    else
      EXPECT_CONTAINS(failure_of(*engine, me.rank), "rank 1 has left");
    me.meet(0);
  });
}

// Leaving is no failure for those who still wait for what others have sent.
TEST(between_hosts_ranks_leave_one_after_the_other) {
  on_processes(Hosts{{1, 1, 1, 1}}, [](Rank& me) {
    const auto engine = me.start();
    // Small: the root is done as soon as it has sent.
    TestRequest request("broadcast dtype=float32 root=0 name=all");
    const Bytes bytes(4 * 1000, std::byte{static_cast<unsigned char>(me.rank)});
    request.add(bytes, {1000}, Output::kApart, bytes.size());
    if (me.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_OK(engine->run(request));
    EXPECT(request.output(0) == Bytes(bytes.size(), std::byte{0}));
    engine->stop();
    me.meet(0);
  });
}

// Its host sees a rank die, or its connection end, and tells the others.
TEST(between_hosts_a_rank_that_dies) {
  const std::vector<Ending> all = endings(Hosts{{2, 2}}, [](Rank& me) {
    const auto engine = me.start();
    if (me.rank == 3) raise(SIGKILL);
    EXPECT_CONTAINS(failure_of(*engine, me.rank), "but rank 3 ");
    me.add(0);
    me.await(0, 3);
  });
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(all[r].code, 0);
  EXPECT_EQ(all[3].signal, SIGKILL);
}

TEST(between_hosts_a_rank_without_memory_for_its_output) {
  on_processes(Hosts{{1, 1}}, [](Rank& me) {
    const auto engine = me.start();
    TestRequest request("allgather dtype=float32 name=rows");
    request.refuse_memory = me.rank == 1;
    request.add(Bytes(4000), {1000}, Output::kAllocated, 0);
    const Status status = engine->run(request);
    EXPECT(!status.ok());
    EXPECT_CONTAINS(status.message(), "expected memory for an output");
    me.meet(0);
  });
}

}  // namespace
}  // namespace ringar::test
