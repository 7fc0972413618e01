// What may go wrong with collectives on GPUs: every call of CUDA and NCCL that fails, ranks that
// die. Each ends in one error per rank, which names what has failed, and nothing is left behind.

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "check.h"
#include "gpu_ranks.h"
#include "plans.h"

namespace ringar::test {
namespace {

// A bit of everything; the first error.
Status some_collectives(Engine& engine, const Rank& me, const std::string& options) {
  int id = -1;
  RINGAR_RETURN_IF_ERROR(allreduce_on_gpu(engine, me, "first", options));
  RINGAR_RETURN_IF_ERROR(engine.add_process_set({1, 0}, &id));
  for (const char* spec : {"allgather", "alltoall", "broadcast", "reducescatter"}) {
    TestRequest& request = request_for(std::string(spec) + " dtype=float32 op=sum name=" + spec);
    const bool sized_later = request.spec.collective == Collective::kAllgather ||
                             request.spec.collective == Collective::kAlltoall;
    const bool halved = request.spec.collective == Collective::kReducescatter;
    const int64_t rows = sized_later ? 10 + me.rank : 11;
    request.add(Bytes(static_cast<size_t>(rows) * 4), {rows},
                sized_later ? Output::kAllocated : Output::kApart,
                halved ? static_cast<size_t>(even_share(rows, 2, me.rank)) * 4
                       : static_cast<size_t>(rows) * 4);
    request.gpu.emplace();
    RINGAR_RETURN_IF_ERROR(engine.run(request));
  }
  RINGAR_RETURN_IF_ERROR(engine.synchronize_gpu());
  return allreduce_on_gpu(engine, me, "last", options);
}

// The sanitizers see all ways of failing in the first ones.
#if defined(__SANITIZE_THREAD__)
constexpr int kTimes[] = {1};
#elif defined(__SANITIZE_ADDRESS__)
constexpr int kTimes[] = {1, 3};
#else
constexpr int kTimes[] = {1, 2, 3, 5};
#endif

const char* const kCalls[] = {"cuInit",
                              "cuDeviceGet",
                              "cuDeviceGetCount",
                              "cuDeviceGetPCIBusId",
                              "cuStreamGetCtx",
                              "cuDriverGetVersion",
                              "cuDevicePrimaryCtxRetain",
                              "cuCtxPushCurrent",
                              "cuStreamCreate",
                              "cuStreamCreateWithPriority",
                              "cuStreamWriteValue32",
                              "cuMemsetD8Async",
                              "cuStreamIsCapturing",
                              "cuStreamWaitEvent",
                              "cuStreamWaitValue32",
                              "cuEventCreate",
                              "cuEventRecord",
                              "cuEventQuery",
                              "cuMemHostAlloc",
                              "cuMemHostGetDevicePointer",
                              "cuMemAlloc",
                              "cuMemcpyDtoHAsync",
                              "cuMemcpyHtoDAsync",
                              "ncclGetVersion",
                              "ncclGetUniqueId",
                              "ncclCommInitRankConfig",
                              "ncclCommSplit",
                              "ncclCommGetAsyncError",
                              "ncclRedOpCreatePreMulSum",
                              "ncclAllReduce",
                              "ncclReduce",
                              "ncclAllGather",
                              "ncclReduceScatter",
                              "ncclBroadcast",
                              "ncclSend",
                              "ncclRecv",
                              "ncclGroupStart",
                              "ncclGroupEnd"};

// The nth call of `call` fails on rank 1, or there is none: then all went well.
void fail_once(const Hosts& hosts, const std::string& call, int nth, const std::string& options) {
  on_processes(hosts, [&](Rank& me) {
    me.config.deadline = 10;
    bool has_come = false;
    {
      const auto engine = start_with_gpu(me);
      if (me.rank == 1) gpu_standin().fail(call.c_str(), nth);
      const auto begin = Clock::now();
      const Status status = some_collectives(*engine, me, options);
      has_come = me.rank == 1 && gpu_standin().calls(call.c_str()) >= nth;
      if (has_come) me.add(1);
      if (status.ok()) me.add(2);
      me.meet(0);
      // The watch looks again, and nothing is lost if there was nothing to see.
      const bool missed_nothing = call == "cuCtxPushCurrent" && me.notes[2].load() == me.size;
      if (me.notes[1].load() == 0 || missed_nothing) {
        EXPECT_OK(status);
      } else {
        if (status.ok()) fail(__FILE__, __LINE__, call + ": no error on this rank");
        EXPECT_CONTAINS(status.message(), call);
        EXPECT_CONTAINS(status.message(), call[0] == 'c' ? "CUDA_ERROR_UNKNOWN" : "internal error");
        EXPECT_CONTAINS(status.message(), "rank 1");
        EXPECT(seconds_since(begin) < 8);
      }
      gpu_standin().fail(call.c_str(), 0);
    }
    expect_clean_gpu();
  });
}

TEST(gpu_calls_that_fail) {
  for (const char* call : kCalls)
    for (int nth : kTimes) fail_once(Hosts{{2}}, call, nth, "");
}

TEST(gpu_calls_that_fail_between_hosts) {
  for (const char* call : {"ncclReduce", "ncclBroadcast", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
                           "cuMemAlloc", "cuEventRecord", "ncclCommInitRankConfig"})
    fail_once(Hosts{{1, 1}}, call, 1, "algorithm=hierarchical ");
}

// What is not given back stays; the numbers are right, and the end comes.
TEST(gpu_calls_that_give_back_may_fail) {
  for (const std::string call :
       {"ncclCommFinalize", "ncclCommDestroy", "ncclRedOpDestroy", "cuEventDestroy",
        "cuStreamDestroy", "cuStreamSynchronize", "cuMemFreeHost", "cuDevicePrimaryCtxRelease",
        "cuThreadExchangeStreamCaptureMode"})
    on_processes(2, [&](Rank& me) {
      me.config.deadline = 10;
      const auto begin = Clock::now();
      {
        const auto engine = start_with_gpu(me);
        if (me.rank == 1) gpu_standin().fail(call.c_str(), 1);
        const Status status = some_collectives(*engine, me, "");
        // The first to ask, and so an error that both hear of.
        if (call != "cuStreamSynchronize") EXPECT_OK(status);
        me.meet(0);
      }
      if (me.rank == 1) EXPECT(gpu_standin().calls(call.c_str()) > 0);
      EXPECT(seconds_since(begin) < 8);
    });
}

// Rank 1 dies while its GPU still computes what `count` collectives wait for.
std::vector<Ending> die_in_collectives(int size, int count) {
  return endings(size, [&](Rank& me) {
    me.config.deadline = 8;
    {
      const auto engine = start_with_gpu(me);
      EXPECT_OK(allreduce_on_gpu(*engine, me, "first"));
      int pair = -1;
      EXPECT_OK(engine->add_process_set({0, 1}, &pair));
      if (me.rank == 1)
        gpu_standin().enqueue(
            nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::seconds(60)); }, nullptr);
      const auto begin = Clock::now();
      std::vector<TestRequest*> requests;
      for (int i = 0; i < count; ++i) {
        const int set = i % 2 && me.rank < 2 ? pair : 0;
        if (i % 2 && set == 0) continue;  // no member
        requests.push_back(&request_for(
            "allreduce dtype=float32 op=sum set=" + std::to_string(set) + " name=fatal"));
        add_ones(*requests.back(), me.rank, 1000);
        requests.back()->gpu.emplace();
        EXPECT_OK(engine->run(*requests.back()));
      }
      me.add(2);
      if (me.rank == 1) {
        me.await(2, size);
        raise(SIGKILL);
      }
      const Status status = engine->synchronize_gpu();
      EXPECT(!status.ok());
      EXPECT_CONTAINS(status.message(), "fatal");
      EXPECT_CONTAINS(status.message(), "rank 1");
      EXPECT(seconds_since(begin) < 15);
      for (const TestRequest* request : requests)
        for (std::byte byte : request->output(0)) EXPECT(byte == std::byte{0xFF});
      EXPECT_EQ(allreduce_on_gpu(*engine, me, "afterwards").code(), status.code());
      EXPECT(engine->has_failed());
    }
    expect_clean_gpu();
  });
}

TEST(gpu_rank_that_dies) {
  for (const auto& [size, count] : {std::pair{2, 1}, std::pair{2, 60}, std::pair{4, 7}}) {
    const auto all = die_in_collectives(size, count);
    for (size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r].signal, r == 1 ? SIGKILL : 0);
    for (size_t r = 0; r < all.size(); ++r)
      if (r != 1) EXPECT_EQ(all[r].code, 0);
  }
}

// Two collectives are under way: both are filled, and a third set goes on.
TEST(gpu_error_that_nccl_reports_later) {
  on_processes(3, [](Rank& me) {
    me.config.deadline = 10;
    {
      const auto engine = start_with_gpu(me);
      EXPECT_OK(allreduce_on_gpu(*engine, me, "first"));
      int pair = -1;
      EXPECT_OK(engine->add_process_set({0, 1}, &pair));
      if (me.rank == 0) gpu_standin().fail_later("ncclAllReduce", 1);
      gpu_standin().enqueue(
          nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); },
          nullptr);
      std::vector<TestRequest*> requests;
      for (int i = 0; i < 2; ++i) {
        requests.push_back(&request_for(allreduce_spec("doomed")));
        add_ones(*requests.back(), me.rank, 1000);
        requests.back()->gpu.emplace();
        EXPECT_OK(engine->run(*requests.back()));
      }
      const Status status = engine->synchronize_gpu();
      EXPECT(!status.ok());
      EXPECT_CONTAINS(status.message(),
                      me.rank == 0 ? "NCCL failed with remote process" : "rank 0");
      for (const auto& request : requests)
        for (std::byte byte : request->output(0)) EXPECT(byte == std::byte{0xFF});
      EXPECT(!allreduce_on_gpu(*engine, me, "afterwards").ok());
      me.meet(0);
    }
    expect_clean_gpu();
  });
}

TEST(gpu_rank_that_leaves_too_early) {
  on_processes(2, [](Rank& me) {
    me.config.deadline = 10;
    {
      const auto engine = start_with_gpu(me);
      TestRequest request(allreduce_spec("last"));
      add_ones(request, me.rank, 1000);
      request.gpu.emplace();
      if (me.rank == 1)
        gpu_standin().enqueue(
            nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); },
            nullptr);
      EXPECT_OK(engine->run(request));
      engine->stop();  // which ends what is under way first
      expect_sum_of_ranks(request, 2);
    }
    expect_clean_gpu();
  });
}

// NCCL would call the other one's functions in place of its own.
TEST(gpu_refuses_an_nccl_that_another_one_gets_into) {
  on_processes(2, [](Rank& me) {
    (void)gpu_standin();
    if (me.rank == 1) EXPECT(dlopen(RINGAR_OTHER_NCCL, RTLD_NOW | RTLD_GLOBAL) != nullptr);
    const auto engine = start_with_gpu(me);
    const Status status = allreduce_on_gpu(*engine, me, "x");
    EXPECT_EQ(status.code(), RINGAR_MISMATCH);
    EXPECT_CONTAINS(status.message(), "rank 1: allreduce");
    EXPECT_CONTAINS(status.message(), "pip install nvidia-nccl-cu12==2.25.1, or -cu13");
    EXPECT_CONTAINS(status.message(), "received 2.27.3 (" RINGAR_GPU_STANDIN "), which would call");
    EXPECT_CONTAINS(status.message(), "functions of 2.25.1 (");
  });
}

TEST(gpu_libraries_that_are_not_there) {
  on_processes(2, [](Rank& me) {
    if (me.rank == 0) me.config.cuda_library = me.config.nccl_library = RINGAR_GPU_STANDIN;
    if (me.rank == 1) me.config.cuda_library = "/nowhere/libcuda.so.1";
    const auto engine = me.start();
    const Status status = allreduce_on_gpu(*engine, me, "x");
    EXPECT_EQ(status.code(), RINGAR_MISMATCH);
    EXPECT_CONTAINS(status.message(), "rank 1: allreduce");
    EXPECT_CONTAINS(status.message(), "/nowhere/libcuda.so.1");
    EXPECT_CONTAINS(status.message(), "Install NVIDIA's driver");
  });
}

}  // namespace
}  // namespace ringar::test
