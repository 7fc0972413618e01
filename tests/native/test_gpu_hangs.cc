// Calls of CUDA and NCCL that block for ever or fail late, as their documentation allows and users
// have seen: ncclCommAbort that waits in cuMemFree for a kernel, or for ranks of the host that do
// not call it; a driver whose GPU hangs. The job ends by its deadline, and says what has hung.

#include <unistd.h>

#include <chrono>
#include <thread>

#include "check.h"
#include "gpu_ranks.h"
#include "plans.h"

namespace ringar::test {
namespace {

constexpr double kDeadline = 5;  // longer than a busy machine lets a rank wait
constexpr int kReturned = 42;    // the exit code where a call did not hang

// An error on both ranks, which names the rank; then the engine ends.
void fail_on_rank_1(const std::function<void()>& prepare, const std::string& what,
                    const std::function<Status(Engine&, const Rank&)>& run) {
  on_processes(2, [&](Rank& me) {
    me.config.deadline = kDeadline;
    const auto begin = Clock::now();
    {
      const auto engine = start_with_gpu(me);
      if (me.rank == 1) prepare();
      const Status status = run(*engine, me);
      EXPECT(!status.ok());
      // Where the deadline comes first, nobody knows whose GPU it is.
      if (status.code() != RINGAR_DEADLINE) EXPECT_CONTAINS(status.message(), "rank 1");
      if (me.rank == 1) EXPECT_CONTAINS(status.message(), what);
      EXPECT(seconds_since(begin) < 3 * kDeadline);
      EXPECT(engine->has_failed());
    }
    EXPECT(seconds_since(begin) < 10 * kDeadline);
  });
}

Status first_allreduce(Engine& engine, const Rank& me) {
  return allreduce_on_gpu(engine, me, "first");
}

TEST(gpu_abort_that_blocks) {
  fail_on_rank_1(
      [] {
        gpu_standin().fail_later("ncclAllReduce", 1);
        gpu_standin().hang("ncclCommAbort", 1);
      },
      "remote process exited", first_allreduce);
}

TEST(gpu_abort_that_fails) {
  fail_on_rank_1(
      [] {
        gpu_standin().fail_later("ncclAllReduce", 1);
        gpu_standin().fail("ncclCommAbort", 1);
      },
      "remote process exited", first_allreduce);
}

// ncclInProgress for a while, then an error; the communicator that is left cannot even be aborted.
TEST(gpu_communicator_that_fails_late) {
  fail_on_rank_1(
      [] {
        gpu_standin().lateness(1);
        gpu_standin().fail_later("ncclCommInitRankConfig", 1);
        gpu_standin().hang("ncclCommAbort", 1);
      },
      "ncclCommInitRankConfig failed with remote process", first_allreduce);
}

TEST(gpu_communicator_that_does_not_come) {
  fail_on_rank_1(
      [] {
        gpu_standin().lateness(600);
        gpu_standin().fail_later("ncclCommInitRankConfig", 1);
        gpu_standin().hang("ncclCommAbort", 1);
      },
      "within the deadline of 5 s, still waiting for rank ",  // or rank 0 was first to give up
      first_allreduce);
}

TEST(gpu_split_that_fails_late) {
  fail_on_rank_1(
      [] {
        gpu_standin().lateness(0.5);
        gpu_standin().fail_later("ncclCommSplit", 1);
        gpu_standin().hang("ncclCommAbort", 1);
      },
      "ncclCommSplit failed with remote process",
      [](Engine& engine, const Rank& me) {
        EXPECT_OK(first_allreduce(engine, me));
        int pair = -1;
        return engine.add_process_set({1, 0}, &pair);
      });
}

// The results are right, and the process ends.
void end_with(const std::function<void()>& prepare) {
  on_processes(2, [&](Rank& me) {
    me.config.deadline = kDeadline;
    auto begin = Clock::now();
    {
      const auto engine = start_with_gpu(me);
      EXPECT_OK(first_allreduce(*engine, me));
      if (me.rank == 1) prepare();
      begin = Clock::now();
    }
    EXPECT(seconds_since(begin) < 8 * kDeadline);
  });
}

TEST(gpu_end_that_fails_late) {
  end_with([] { gpu_standin().fail_later("ncclCommFinalize", 1); });
}
TEST(gpu_end_that_blocks) {
  end_with([] { gpu_standin().hang("ncclCommDestroy", 1); });
}

// Not even the abort ends it: the stream never goes on.
TEST(gpu_kernel_that_never_ends) {
  fail_on_rank_1([] {}, "it does not end on one of their GPUs",
                 [](Engine& engine, const Rank& me) {
                   EXPECT_OK(first_allreduce(engine, me));
                   if (me.rank == 1)
                     gpu_standin().enqueue(
                         nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::hours(1)); },
                         nullptr);
                   return allreduce_on_gpu(engine, me, "stuck");
                 });
}

// The process ends, which nothing else could end; the other rank has an error before.
void hang_on(const std::string& call, int nth, bool on_all_ranks) {
  const std::vector<Ending> all = endings(2, [&](Rank& me) {
    me.config.deadline = kDeadline;
    const auto begin = Clock::now();
    const auto engine = start_with_gpu(me);
    if (me.rank == 1 || on_all_ranks) gpu_standin().hang(call.c_str(), nth);
    Status status;
    for (int i = 0; i < 20 && status.ok(); ++i)
      status = allreduce_on_gpu(*engine, me, "number" + std::to_string(i));
    if (me.rank == 1 || on_all_ranks) _exit(kReturned);
    EXPECT(!status.ok());
    if (status.code() != RINGAR_DEADLINE) {
      EXPECT_CONTAINS(status.message(), "rank 1");
      EXPECT_CONTAINS(status.message(), call + " has not returned");
    }
    EXPECT(seconds_since(begin) < 3 * kDeadline);
  });
  EXPECT_EQ(all[0].code, on_all_ranks ? 1 : 0);
  EXPECT_EQ(all[1].code, 1);
}

TEST(gpu_calls_that_hang_in_the_driver) {
  hang_on("cuInit", 1, false);
}
TEST(gpu_calls_that_hang_in_an_event) {
  hang_on("cuEventQuery", 1, false);
}
TEST(gpu_calls_that_hang_in_nccl) {
  hang_on("ncclGroupEnd", 1, false);
}
TEST(gpu_calls_that_hang_on_all_ranks) {
  hang_on("ncclGroupEnd", 2, true);
}

}  // namespace
}  // namespace ringar::test
