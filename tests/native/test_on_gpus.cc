// Collectives on GPUs, on a stand-in for CUDA and NCCL: the numbers, the order of streams, and that
// nothing is left behind.

#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "gpu_ranks.h"
#include "plans.h"

namespace ringar::test {
namespace {

constexpr int kPlansOnGpus = kSanitized ? 25 : 60;
constexpr size_t kLargestOnGpus = 200'000;

void run_plans_on_gpus(Engine& engine, const Rank& me, uint64_t seed, int gpus = 1) {
  for (int i = 0; i < kPlansOnGpus; ++i)
    run_plan(random_plan_on_gpus(seed * 1000 + static_cast<uint64_t>(i), all_ranks(me.size), 0,
                                 kLargestOnGpus, gpus),
             me.rank, engine);
}

TEST(on_gpus_against_the_reference) {
  for (int size : {1, 2, 3, 4})
    on_processes(size, [&](Rank& me) {
      {
        const auto engine = start_with_gpu(me);
        run_plans_on_gpus(*engine, me, 600 + static_cast<uint64_t>(size));
      }
      expect_clean_gpu();
    });
}

// A stream that two ranks shared would wait for itself: each rank has a GPU.
TEST_APART(on_gpus_of_threads) {
  gpu_standin().devices(2);
  on_threads(2, [](Rank& me) {
    const auto engine = start_with_gpu(me);
    run_plans_on_gpus(*engine, me, 610, 2);
    me.meet(0);
  });
  expect_clean_gpu();
}

TEST(on_gpus_several_generations) {
  on_processes(2, [](Rank& me) {
    for (uint64_t generation = 0; generation < 3; ++generation) {
      const auto engine = start_with_gpu(me);
      for (uint64_t i = 0; i < 5; ++i)
        run_plan(random_plan_on_gpus(620 + 10 * generation + i, all_ranks(2), 0, 1000), me.rank,
                 *engine);
    }
    expect_clean_gpu();
  });
}

// Some are split off, those before the first collective are invited.
TEST(on_gpus_process_sets) {
  on_processes(4, [](Rank& me) {
    {
      const auto engine = start_with_gpu(me);
      const std::vector<std::vector<int>> sets{{0, 1}, {3, 0, 2}, {2}, {1, 3}, {3, 2, 1, 0}};
      std::vector<int> ids;
      for (const auto& set : sets) {
        ids.push_back(-1);
        EXPECT_OK(engine->add_process_set(set, &ids.back()));
        if (ids.size() == 2)
          run_plan(random_plan_on_gpus(8, all_ranks(4), 0, 1000), me.rank, *engine);
      }
      for (uint64_t seed = 0; seed < 40; ++seed) {
        const size_t index = seed % sets.size();
        run_plan(random_plan_on_gpus(9000 + seed, sets[index], ids[index], 20'000), me.rank,
                 *engine);
      }
      EXPECT(gpu_standin().calls("ncclCommSplit") >= 3);
      for (int id : ids) EXPECT_OK(engine->remove_process_set(id));
    }
    expect_clean_gpu();
  });
}

// Each with a process set of its own; the GPU is one.
TEST(on_gpus_of_two_threads) {
  on_processes(1, [](Rank& me) {
    {
      const auto engine = start_with_gpu(me);
      std::vector<std::thread> threads;
      Status failures[2];
      for (Status& failure : failures) {
        int id = 0;
        EXPECT_OK(engine->add_process_set({0}, &id));
        threads.emplace_back([&, id] {
          for (int i = 0; i < 20; ++i) {
            TestRequest request(
                "allreduce dtype=float32 op=sum postscale=2 set=" + std::to_string(id) + " name=x");
            add_ones(request, 0, 1000);
            request.gpu.emplace();
            Status status = engine->run(request);
            if (status.ok()) status = engine->wait_on_gpu(*request.gpu);
            if (!status.ok()) failure = status;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const Status& failure : failures) EXPECT_OK(failure);
    }
    expect_clean_gpu();
  });
}

// Not waited for: what comes before in the stream, and what comes after.
TEST(on_gpus_in_the_order_of_the_stream) {
  on_processes(2, [](Rank& me) {
    {
      const auto engine = start_with_gpu(me);
      static float values[1000];
      static std::atomic<float> sum;
      const auto write = [](void*) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        for (float& value : values) value = 3;
      };
      const auto read = [](void*) { sum = values[999]; };
      run_plan(random_plan_on_gpus(4, {0, 1}, 0, 1000), me.rank, *engine);  // opens the GPU
      for (int i = 0; i < 3; ++i) {
        std::fill(std::begin(values), std::end(values), -1.0f);
        sum.store(-1);
        TestRequest request("allreduce dtype=float32 op=sum name=late");
        request.gpu.emplace();
        auto* const bytes = reinterpret_cast<std::byte*>(values);
        request.tensors.push_back({bytes, bytes, Shape(1, [](int) { return 1000; })});
        gpu_standin().enqueue(nullptr, write, nullptr);
        EXPECT_OK(engine->run(request));
        gpu_standin().enqueue(nullptr, read, nullptr);
        EXPECT_OK(engine->synchronize_gpu());
        EXPECT_EQ(values[0], 6.0f);
        while (sum.load() < 0) std::this_thread::yield();
        EXPECT_EQ(sum.load(), 6.0f);
      }
    }
    expect_clean_gpu();
  });
}

// A rank with its arrays elsewhere is an error on all, and all go on.
TEST(on_gpus_and_hosts_at_once) {
  on_processes(3, [](Rank& me) {
    {
      const auto engine = start_with_gpu(me);
      for (int i = 0; i < 3; ++i) {
        TestRequest request(allreduce_spec("mixed"));
        add_ones(request, me.rank, 100);
        if (me.rank != i) request.gpu.emplace();
        const Status status = engine->run(request);
        EXPECT_EQ(status.code(), RINGAR_MISMATCH);
        EXPECT_CONTAINS(status.message(), "float32[100] on a GPU");
        run_plan(random_plan_on_gpus(30 + static_cast<uint64_t>(i), all_ranks(3), 0, 1000), me.rank,
                 *engine);
      }
    }
    expect_clean_gpu();
  });
}

TEST(on_gpus_refusals_reach_all_ranks) {
  on_processes(2, [](Rank& me) {
    {
      const auto engine = start_with_gpu(me);
      const auto refused = [&](const std::string& options, int device) {
        TestRequest request("allreduce dtype=float32 " + options + " name=refused");
        add_ones(request, me.rank, 10);
        request.gpu.emplace();
        if (me.rank == 1) request.gpu->device = device;
        const Status status = engine->run(request);
        EXPECT_EQ(status.code(), RINGAR_MISMATCH);
        return status.message();
      };
      EXPECT_CONTAINS(refused("op=max prescale=2", 0), "expected op=sum with factors on a GPU");
      EXPECT_CONTAINS(refused("op=sum prescale=1e-30 postscale=1e-30", 0), "float32 can hold");
      EXPECT_CONTAINS(refused("op=sum algorithm=ring", 0), "where NCCL chooses");
      EXPECT_CONTAINS(refused("op=sum", 7), "expected a GPU from 0 to 0, received 7");
      run_plan(random_plan_on_gpus(40, all_ranks(2), 0, 1000), me.rank, *engine);
      EXPECT_CONTAINS(refused("op=sum", 7), "a rank has one GPU");
      run_plan(random_plan_on_gpus(41, all_ranks(2), 0, 1000), me.rank, *engine);
    }
    expect_clean_gpu();
  });
}

void run_hierarchical(Engine& engine, const Rank& me, uint64_t seed, size_t largest) {
  Plan plan = random_plan_on_gpus(seed, all_ranks(me.size), 0, largest);
  if (plan.collective == Collective::kAllreduce) plan.options = "algorithm=hierarchical ";
  run_plan(plan, me.rank, engine);
}

TEST(on_gpus_of_several_hosts) {
  for (const Hosts& hosts : {Hosts{{1, 1}}, Hosts{{2, 2}}, Hosts{{1, 2}}, Hosts{{2, 1, 2}, true}})
    on_processes(hosts, [](Rank& me) {
      {
        const auto engine = start_with_gpu(me);
        TestRequest nothing("allreduce dtype=float32 algorithm=hierarchical name=nothing");
        nothing.add({}, {0}, Output::kApart, 0);
        nothing.gpu.emplace();
        EXPECT_OK(engine->run(nothing));
        for (uint64_t i = 0; i < kPlansOnGpus / 2; ++i)
          run_hierarchical(*engine, me, 700 + i, kLargestOnGpus);
      }
      expect_clean_gpu();
    });
}

// More than two blocks of 4 MiB per rail: the third takes the buffers of the first.
TEST(on_gpus_of_several_hosts_in_blocks) {
  on_processes(Hosts{{2, 1}}, [](Rank& me) {
    {
      const auto engine = start_with_gpu(me);
      TestRequest request(
          "allreduce dtype=float32 op=sum postscale=0.5 algorithm=hierarchical name=x");
      request.gpu.emplace();
      for (size_t elements : {1'900'001, 17, 300'000})
        add_ones(request, me.rank, elements, Output::kInPlace);
      EXPECT_OK(engine->run(request));
      EXPECT_OK(engine->synchronize_gpu());
      const float sum = static_cast<float>(me.size * (me.size + 1)) / 4;
      for (size_t i = 0; i < 3; ++i) expect_copies_of(sum, request.output(i));
    }
    expect_clean_gpu();
  });
}

}  // namespace
}  // namespace ringar::test
