// Outputs in the shared segment: taken, freed, forfeited, copied for forked children; and
// collectives of ranks that have their arrays there, or some of them, or none.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "check.h"
#include "engine/output_pool.h"
#include "engine/tuning.h"
#include "plans.h"
#include "ranks.h"
#include "reference.h"
#include "requests.h"

namespace ringar::test {
namespace {

using Memory = std::unique_ptr<OutputPool::Memory>;
constexpr size_t kLeast = OutputPool::kLeastBytes;

// In a process: the variable holds for all of it.
void limit_pool(size_t bytes) {
  setenv("RINGAR_OUTPUT_POOL", std::to_string(bytes).c_str(), 1);
}

int64_t blocks_of(const Rank& me) {
  struct stat file{};
  EXPECT_EQ(fstat(me.config.segment_fd, &file), 0);
  return file.st_blocks;
}

// On a rank of a job of two, the other of which does nothing.
void on_a_rank(size_t limit, const std::function<void(Rank&, Engine&)>& body) {
  on_processes(2, [&](Rank& me) {
    limit_pool(limit);
    const auto engine = me.start();
    me.meet(0);
    if (me.rank == 0) body(me, *engine);
    me.meet(1);
  });
}

TEST(output_pool_uses_memory_again) {
  on_a_rank(16 * kLeast, [](Rank&, Engine& engine) {
    const auto pool = engine.outputs();
    Memory first = pool->take(3 * kLeast), second = pool->take(2 * kLeast - 1);
    EXPECT(!pool->take(kLeast - 1));
    EXPECT_EQ(pool->bytes_taken(), 5 * kLeast);
    std::byte *const first_data = first->data(), *const second_data = second->data();
    EXPECT(second_data >= first_data + 3 * kLeast);
    std::memset(first_data, 1, 3 * kLeast);
    std::memset(second_data, 2, 2 * kLeast);
    EXPECT_EQ(first_data[3 * kLeast - 1], std::byte{1});
    std::thread([&] { first.reset(); }).join();
    first = pool->take(2 * kLeast);
    EXPECT_EQ(first->data(), first_data);
    Memory third = pool->take(kLeast);
    EXPECT_EQ(third->data(), first_data + 2 * kLeast);
    second.reset();
    third.reset();
    first.reset();
    EXPECT_EQ(pool->bytes_taken(), size_t{0});
    EXPECT_EQ(pool->take(5 * kLeast)->data(), first_data);  // what was freed is one range again
    EXPECT_EQ(pool->bytes_with_pages(), 5 * kLeast);
  });
}

TEST(output_pool_has_a_limit_and_keeps_half_of_it) {
  on_a_rank(8 * kLeast, [](Rank& me, Engine& engine) {
    const auto pool = engine.outputs();
    EXPECT(!pool->take(9 * kLeast));
    const int64_t before = blocks_of(me);
    Memory most = pool->take(7 * kLeast);
    EXPECT(!pool->take(2 * kLeast));
    EXPECT(pool->take(kLeast));
    EXPECT(blocks_of(me) - before >= static_cast<int64_t>(7 * kLeast / 512));
    most.reset();
    EXPECT_EQ(pool->bytes_with_pages(), 4 * kLeast);
    EXPECT_EQ(blocks_of(me) - before, static_cast<int64_t>(4 * kLeast / 512));
    most = pool->take(8 * kLeast);
    std::memset(most->data(), 1, 8 * kLeast);
  });
}

TEST(output_pool_makes_no_pages_and_keeps_none_where_memory_is_short) {
  constexpr size_t kBytes = 8 * kLeast;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  size_t available = kBytes;
  const auto pool = std::make_shared<OutputPool>(
      static_cast<std::byte*>(memory), kBytes, 0, 1, [](uint64_t, size_t) { return true; },
      [&](size_t bytes) { return available < bytes + kLeast; });
  Memory first = pool->take(2 * kLeast), second = pool->take(kLeast);
  available = 2 * kLeast;
  EXPECT(!pool->take(2 * kLeast));
  second.reset();
  EXPECT_EQ(pool->bytes_with_pages(), 3 * kLeast);
  EXPECT((second = pool->take(kLeast)));
  available = 0;
  second.reset();
  EXPECT_EQ(pool->bytes_with_pages(), 2 * kLeast);
  EXPECT(!pool->take(kLeast));
  first.reset();
  EXPECT_EQ(pool->bytes_with_pages(), size_t{0});
}

TEST(output_pool_memory_outlives_the_engine) {
  on_processes(2, [](Rank& me) {
    limit_pool(16 * kLeast);
    std::vector<Memory> memories;
    auto engine = me.start();
    const auto pool = engine->outputs();
    me.meet(0);
    const int64_t before = blocks_of(me);
    me.meet(6);
    for (int i = 0; i < 4; ++i) {
      memories.push_back(pool->take(2 * kLeast));
      std::memset(memories.back()->data(), 7, 2 * kLeast);
    }
    memories[1].reset();
    me.meet(1);
    engine->stop();
    engine.reset();
    me.meet(2);
    EXPECT(!pool->take(kLeast));
    EXPECT_EQ(blocks_of(me) - before, static_cast<int64_t>(2 * 3 * 2 * kLeast / 512));
    me.meet(3);
    engine = me.engine();  // whose start forgets the time before
    EXPECT_OK(engine->start());
    for (const size_t i : {0u, 2u, 3u})
      for (size_t at = 0; at < 2 * kLeast; at += 4096)
        EXPECT_EQ(memories[i]->data()[at], std::byte{7});
    std::thread([&] { memories.clear(); }).join();
    me.meet(4);
    EXPECT(blocks_of(me) <= before);
    me.meet(5);
  });
}

TEST(output_pool_needs_the_same_limit_on_all_ranks) {
  on_processes(3, [](Rank& me) {
    limit_pool(me.rank == 1 ? 0 : 16 * kLeast);
    const auto engine = me.start();
    EXPECT(!engine->outputs());
    run_plan(random_plan(3, all_ranks(me.size), 0, 300'000), me.rank, *engine);
  });
}

// The child sees what was there when it was made, and what it writes is its own.
TEST(output_pool_of_a_forked_child_is_a_copy) {
  on_a_rank(16 * kLeast, [](Rank& me, Engine& engine) {
    const auto pool = engine.outputs();
    Memory memory = pool->take(kLeast);
    std::byte* const data = memory->data();
    std::memset(data, 1, kLeast);
    const pid_t child = fork();
    if (child == 0) {
      me.await(2, 1);
      bool right = !pool->take(kLeast);
      for (size_t at = 0; at < kLeast; ++at) right &= data[at] == std::byte{1};
      std::memset(data, 3, kLeast);
      memory.reset();
      _exit(right ? 0 : 1);
    }
    std::memset(data, 2, kLeast);
    memory.reset();
    memory = pool->take(kLeast);
    EXPECT_EQ(memory->data(), data);
    me.add(2);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (size_t at = 0; at < kLeast; ++at) EXPECT_EQ(data[at], std::byte{2});
  });
}

// Puts some of the arrays of a request into the pool.
class InPool {
 public:
  InPool(TestRequest& request, OutputPool& pool, uint64_t choices) {
    for (Tensor& tensor : request.tensors) {
      const size_t bytes = static_cast<size_t>(tensor.shape.elements()) * request.element_size();
      const bool in_place = tensor.input == tensor.output;
      if (choices & 1) {
        std::byte* const moved = place(pool, bytes, choices, request.element_size());
        if (bytes > 0) std::memcpy(moved, tensor.input, bytes);
        tensor.input = moved;
        if (in_place) tensor.output = moved;
      }
      if (choices & 2 && !in_place && tensor.output)
        tensor.output = place(pool, bytes, choices, request.element_size());
      choices = choices >> 2 | choices << 62;
    }
  }

 private:
  std::byte* place(OutputPool& pool, size_t bytes, uint64_t choices, size_t element) {
    memories_.push_back(pool.take(std::max(kLeast, bytes + 64)));
    EXPECT(memories_.back());
    return memories_.back()->data() + choices % 4 * element;
  }
  std::vector<Memory> memories_;
};

void expect_plan_in_pool(const Plan& plan, int rank, Engine& engine, uint64_t choices) {
  const auto member = static_cast<size_t>(rank);
  const auto request = plan.request(member);
  const InPool in_pool(*request, *engine.outputs(), choices);
  const Status status = engine.run(*request);
  if (!status.ok()) fail(__FILE__, __LINE__, plan.describe() + " failed: " + status.message());
  for (size_t i = 0; i < plan.arrays(); ++i) {
    const Bytes expected = plan.expected(member, i);
    const std::byte* const output = request->tensors[i].output;
    const int64_t at =
        first_difference(plan.dtype, Bytes(output, output + expected.size()), expected);
    if (at >= 0)
      fail(__FILE__, __LINE__,
           plan.describe() + ": array " + std::to_string(i) + " differs at " + std::to_string(at));
  }
}

uint64_t bits(uint64_t seed) {
  return (seed + 1) * 0x9e3779b97f4a7c15u ^ seed << 31;
}

// All ranks have all in the pool, or each has something else.
void run_plans_in_pool(const Rank& me, size_t largest) {
  const auto engine = me.start();
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Plan plan =
        random_plan(seed * 7 + static_cast<uint64_t>(me.size), all_ranks(me.size), 0, largest);
    if (plan.collective != Collective::kAllreduce || plan.twist != Twist::kNone) continue;
    const uint64_t mixed = bits(seed * 64 + static_cast<uint64_t>(me.rank));
    for (const uint64_t choices : {~uint64_t{0}, 0xaaaaaaaaaaaaaaaau, mixed})
      expect_plan_in_pool(plan, me.rank, *engine, choices);
  }
}

// The same of each collective that reads inputs where they lie, of at least as many bytes.
void run_long_plans_in_pool(const Rank& me) {
  const auto engine = me.start();
  for (const Collective collective : {Collective::kReducescatter, Collective::kAllgather,
                                      Collective::kBroadcast, Collective::kAlltoall}) {
    int left = 2;
    for (uint64_t seed = 0; left > 0; ++seed) {
      const Plan plan = random_plan(seed, all_ranks(me.size), 0, 500'000);
      if (plan.collective != collective || plan.twist != Twist::kNone) continue;
      const auto request = plan.request(0);
      if (request->input_bytes() < kLeast) continue;
      --left;
      const uint64_t mixed = bits(seed * 64 + static_cast<uint64_t>(me.rank));
      for (const uint64_t choices : {~uint64_t{0}, mixed})
        expect_plan_in_pool(plan, me.rank, *engine, choices);
    }
  }
}

// A file in a file system of its own, which gives large pages to those that ask for them.
int file_of_large_pages() {
  constexpr int kSetString = 1, kCreate = 6;  // of fsconfig()
  const auto system = static_cast<int>(syscall(SYS_fsopen, "tmpfs", 0));
  if (syscall(SYS_fsconfig, system, kSetString, "huge", "advise", 0) != 0 ||
      syscall(SYS_fsconfig, system, kCreate, nullptr, nullptr, 0) != 0)
    throw Skipped{"expected the right to mount a tmpfs with large pages"};
  const auto folder = static_cast<int>(syscall(SYS_fsmount, system, 0, 0));
  const int file = openat(folder, "shared segment", O_RDWR | O_CREAT, 0600);
  EXPECT(file >= 0);
  close(folder);
  close(system);
  return file;
}

Plan many_arrays(int ranks, int64_t arrays, int64_t rows) {
  Plan plan = random_plan(5, all_ranks(ranks), 0, 64);
  plan.collective = Collective::kAllreduce;
  plan.dtype = DataType::kInt32;
  plan.op = ReduceOp::kSum;
  plan.prescale = plan.postscale = 1;
  plan.where = Output::kApart;
  plan.twist = Twist::kNone;
  plan.options = "";
  plan.tails.assign(static_cast<size_t>(arrays), {});
  plan.rows.assign(static_cast<size_t>(ranks), std::vector<int64_t>(size_t(arrays), rows));
  plan.splits.assign(static_cast<size_t>(ranks), {});
  return plan;
}

TEST(allreduce_in_the_pool_of_threads) {
  for (const int size : {2, 3, 4})
    on_threads(size, [](Rank& me) { run_plans_in_pool(me, 2'000'000); });
}

TEST(allreduce_in_the_pool_of_processes) {
  for (const int size : {2, 3, 4})
    on_processes(size, [](Rank& me) { run_plans_in_pool(me, 3'000'000); });
}

TEST(collectives_of_inputs_in_the_pool_of_threads) {
  on_threads(2, [](Rank& me) { run_long_plans_in_pool(me); });
}

TEST(collectives_of_inputs_in_the_pool_of_processes) {
  for (const int size : {2, 3}) on_processes(size, [](Rank& me) { run_long_plans_in_pool(me); });
}

// Rank 0 gives up while rank 1 has yet to read its input, which the caller of rank 0 changes.
TEST(inputs_in_the_pool_of_a_rank_that_has_given_up) {
  on_processes(2, [](Rank& me) {
    if (me.rank == 0) me.config.deadline = 0.2;
    const auto engine = me.start();
    const Memory input = engine->outputs()->take(kLeast);
    TestRequest request(
        "allgather dtype=int8 op=sum root=0 set=0 prescale=1 postscale=1 name=late");
    request.add(Bytes(kLeast), {static_cast<int64_t>(kLeast)}, Output::kAllocated, 0);
    request.tensors[0].input = input->data();
    if (me.rank == 1) request.on_allocate = [&] { me.await(0, 1); };
    const Status status = engine->run(request);
    EXPECT_EQ(status.code(), me.rank == 0 ? RINGAR_DEADLINE : RINGAR_PEER_LOST);
    std::memset(input->data(), 1, kLeast);
    me.add(0);
    me.await(0, 2);
  });
}

// Many blocks, with ends of arrays in the middle of slices, and an array of few bytes between.
TEST(allreduce_in_the_pool_of_many_blocks) {
  for (const int size : {2, 3})
    on_processes(size, [](Rank& me) {
      const auto engine = me.start();
      Plan plan = many_arrays(me.size, 3, 700'001);
      for (auto& rows : plan.rows) rows[1] = 5;
      for (const Output where : {Output::kApart, Output::kInPlace}) {
        plan.where = where;
        for (uint64_t seed = 0; seed < 4; ++seed)
          expect_plan_in_pool(
              plan, me.rank, *engine,
              seed ? bits(seed * 4 + static_cast<uint64_t>(me.rank)) : ~uint64_t{0});
      }
    });
}

// More arrays than there is room for offers, with inputs and outputs or with inputs alone.
TEST(collectives_in_the_pool_of_many_arrays) {
  on_processes(3, [](Rank& me) {
    setenv("RINGAR_TUNING", "slice=4096,small=4096", 1);
    const auto engine = me.start();
    Plan plan = many_arrays(me.size, 300, 100);
    expect_plan_in_pool(plan, me.rank, *engine, ~uint64_t{0});
    expect_plan_in_pool(plan, me.rank, *engine, bits(static_cast<uint64_t>(me.rank)));
    plan = many_arrays(me.size, 530, 130);
    for (const Collective collective : {Collective::kReducescatter, Collective::kBroadcast}) {
      plan.collective = collective;
      expect_plan_in_pool(plan, me.rank, *engine, 0x5555555555555555u);
    }
  });
}

// Memory is taken and given back, and copied for a child, in the middle of large pages.
TEST(collectives_in_the_pool_of_large_pages) {
  const int file = file_of_large_pages();
  on_processes(2, [&](Rank& me) {
    me.config.segment_fd = file;
    limit_pool(40 * kLeast);
    const auto engine = me.start();
    const auto pool = engine->outputs();
    Memory first = pool->take(30 * kLeast), second = pool->take(5 * kLeast);
    std::memset(first->data(), 1, 30 * kLeast);
    std::memset(second->data(), 2, 5 * kLeast);
    const pid_t child = fork();
    if (child == 0) {
      me.await(0, 2);
      _exit(first->data()[kLeast] == std::byte{1} && second->data()[0] == std::byte{2} ? 0 : 1);
    }
    first.reset();
    const Plan plan = many_arrays(me.size, 3, 300'001);
    expect_plan_in_pool(plan, me.rank, *engine, 0x5555555555555555u);
    for (size_t at = 0; at < 5 * kLeast; ++at) EXPECT_EQ(second->data()[at], std::byte{2});
    second.reset();
    EXPECT_EQ(pool->bytes_with_pages(), 20 * kLeast);
    me.add(0);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(pool->take(40 * kLeast)->data()[39 * kLeast], std::byte{0});
  });
  close(file);
}

// A rank that has nothing left in its pool takes part as before.
TEST(allreduce_of_ranks_with_and_without_a_pool) {
  on_processes(3, [](Rank& me) {
    limit_pool(16 * kLeast);
    const auto engine = me.start();
    Memory all;
    if (me.rank == 1) all = engine->outputs()->take(16 * kLeast);
    const Plan plan = many_arrays(me.size, 1, 400'000);
    for (int i = 0; i < 3; ++i) {
      if (me.rank == 1)
        run_plan(plan, me.rank, *engine);
      else
        expect_plan_in_pool(plan, me.rank, *engine, 2);
    }
  });
}

// A late rank may still write to the outputs of a collective that has failed.
TEST(output_pool_forfeits_what_a_lost_rank_was_to_write) {
  const auto all = endings(3, [](Rank& me) {
    limit_pool(64 * kLeast);
    const auto engine = me.start();
    const auto pool = engine->outputs();
    Memory memory = pool->take(8 * kLeast), other = pool->take(kLeast);
    std::byte* const data = memory->data();
    std::byte* const unharmed = other->data();
    TestRequest request(allreduce_spec("large"));
    add_ones(request, me.rank, 2 * kLeast);
    request.tensors[0].output = data;
    EXPECT_OK(engine->run(request));
    me.meet(0);
    if (me.rank == 2) raise(SIGKILL);
    EXPECT_EQ(engine->run(request).code(), RINGAR_PEER_LOST);
    memory.reset();
    other.reset();
    other = pool->take(kLeast);
    EXPECT_EQ(other->data(), unharmed);
    memory = pool->take(8 * kLeast);
    EXPECT(memory->data() != data);
  });
  EXPECT_EQ(all[0].code, 0);
  EXPECT_EQ(all[1].code, 0);
  EXPECT_EQ(all[2].signal, SIGKILL);
}

}  // namespace
}  // namespace ringar::test
