// What is wrong with GPUs, driver and NCCL before anything runs on them: an error on all ranks,
// which says what to do.

#include <cstdlib>
#include <string>
#include <utility>

#include "check.h"
#include "gpu_ranks.h"
#include "plans.h"

namespace ringar::test {
namespace {

// How each rank's GPU and NCCL are.
struct Setup {
  int gpu = 0, version = 22703;
  bool shares = false;
};

Status set_up(Rank& me, const Setup& setup) {
  gpu_standin().place(setup.gpu);
  gpu_standin().pretend_version(setup.version);
  if (setup.shares) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  Status status;
  {
    const auto engine = start_with_gpu(me);
    status = allreduce_on_gpu(*engine, me, "first");
    // All ranks can go on: they have refused alike.
    EXPECT(!engine->has_failed());
    TestRequest request(allreduce_spec("on_hosts"));
    add_ones(request, me.rank, 100);
    EXPECT_OK(engine->run(request));
    expect_sum_of_ranks(request, me.size);
  }
  expect_clean_gpu();
  return status;
}

void expect_refusal(const Setup& first, const Setup& second, const std::string& why) {
  on_processes(3, [&](Rank& me) {
    const Status status = set_up(me, me.rank == 0   ? Setup{7, first.version, first.shares}
                                     : me.rank == 1 ? first
                                                    : second);
    EXPECT_EQ(status.code(), RINGAR_MISMATCH);
    EXPECT_CONTAINS(status.message(), why);
  });
}

void expect_success(const Hosts& hosts, const Setup& first, const Setup& second) {
  on_processes(hosts, [&](Rank& me) { EXPECT_OK(set_up(me, me.rank == 0 ? first : second)); });
}

// So are the parts of a GPU (MIG), which have its place on the bus.
TEST(gpu_that_ranks_share) {
  constexpr int kNew = 23100;
  const std::string refusal =
      "expected a GPU for each rank, received GPU 0000:00:05.0 for rank 1 and rank 2, which NCCL ";
  expect_refusal({5}, {5}, refusal + "2.27.3 refuses. Give each rank a GPU: start the job by");
  expect_refusal({5, kNew}, {5, kNew}, refusal + "2.31.0 refuses");
  // Only where all ranks have asked for it.
  expect_refusal({5, kNew, true}, {5, kNew}, refusal + "2.31.0 refuses");
  expect_refusal({5, 22703, true}, {5, 22703, true}, refusal + "2.27.3 refuses");
  expect_success({{2}}, {5, kNew, true}, {5, kNew, true});
  expect_success({{1, 1}}, {5}, {5});  // the same place in two hosts
}

TEST(gpu_ranks_with_two_versions_of_nccl) {
  expect_refusal({1, 22703}, {2, 22705},
                 "expected one version of NCCL on all ranks, received 2.27.3 on rank 0 and 2.27.5 "
                 "on rank 2; install the same on all hosts");
}

// A stream of another GPU is one of another context.
TEST(gpu_stream_of_another_context) {
  on_processes(2, [](Rank& me) {
    gpu_standin().devices(2);
    gpu_standin().place(2 * me.rank);
    {
      const auto engine = start_with_gpu(me);
      EXPECT_OK(allreduce_on_gpu(*engine, me, "first"));
      const Cuda* driver = nullptr;
      EXPECT_OK(open_cuda(RINGAR_GPU_STANDIN, &driver));
      cuda::Context context = nullptr;
      EXPECT_OK(RINGAR_CUDA(*driver, DevicePrimaryCtxRetain, &context, 1));
      const CurrentContext current(*driver, context);
      cuda::Stream stream = nullptr;
      EXPECT_OK(RINGAR_CUDA(*driver, StreamCreate, &stream, 0));
      TestRequest request(allreduce_spec("elsewhere"));
      add_ones(request, me.rank, 10);
      request.gpu.emplace();
      if (me.rank == 1) request.gpu->stream = stream;
      const Status status = engine->run(request);
      EXPECT_EQ(status.code(), RINGAR_MISMATCH);
      EXPECT_CONTAINS(status.message(), "rank 1");
      EXPECT_CONTAINS(status.message(), "expected a stream of the primary context of GPU 0");
      EXPECT_OK(allreduce_on_gpu(*engine, me, "afterwards"));
      EXPECT_OK(RINGAR_CUDA(*driver, StreamDestroy, stream));
      EXPECT_OK(RINGAR_CUDA(*driver, DevicePrimaryCtxRelease, 1));
    }
    expect_clean_gpu();
  });
}

struct Fault {
  const char* call;
  int code;
  const char *text, *remedy;
};

constexpr Fault kFaults[] = {
    {"cuInit", cuda::kNotInitialized, "", "Start processes by spawn"},
    {"cuInit", cuda::kStubLibrary, "", "libcuda.so.1 of NVIDIA's driver"},
    {"cuInit", cuda::kNoDevice, "", "Check CUDA_VISIBLE_DEVICES"},
    {"cuInit", cuda::kSystemNotReady, "", "systemctl start nvidia-fabricmanager"},
    {"cuInit", cuda::kDriverMismatch, "", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {"cuDevicePrimaryCtxRetain", cuda::kDeviceUnavailable, "", "nvidia-smi -c DEFAULT"},
    {"cuDevicePrimaryCtxRetain", cuda::kOutOfMemory, "", "TF_FORCE_GPU_ALLOW_GROWTH=true"},
    {"cuEventQuery", cuda::kIllegalAddress, "", "CUDA_LAUNCH_BLOCKING=1"},
    {"ncclCommInitRankConfig", 1,
     "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'",
     "update NVIDIA's driver"},
    {"ncclCommInitRankConfig", 1, "Cuda failure 2 'out of memory'", "TF_FORCE_GPU_ALLOW_GROWTH"},
    {"ncclGroupEnd", 1,
     "Cuda failure 209 'no kernel image is available for execution on the device'",
     "no kernels for this GPU"},
    {"ncclCommInitRankConfig", 2,
     "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space "
     "left on device (28)",
     "docker run --shm-size=1g"},
};

TEST(gpu_faults_of_the_machine) {
  for (const Fault& fault : kFaults)
    on_processes(2, [&](Rank& me) {
      me.config.deadline = 10;
      const auto engine = start_with_gpu(me);
      if (me.rank == 1) gpu_standin().fail_with(fault.call, 1, fault.code, fault.text);
      const Status status = allreduce_on_gpu(*engine, me, "x");
      EXPECT(!status.ok());
      if (me.rank != 1) return;
      EXPECT_CONTAINS(status.message(), fault.call);
      EXPECT_CONTAINS(status.message(), fault.text);
      EXPECT_CONTAINS(status.message(), fault.remedy);
    });
}

}  // namespace
}  // namespace ringar::test
