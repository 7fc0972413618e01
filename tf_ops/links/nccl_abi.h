// The part of NCCL's interface that ringar uses, declared here so that building needs no NCCL, and
// looked up when the first collective on a GPU comes.
//
// tests/test_cuda_abi.py compiles these declarations against <nccl.h>.

#pragma once

#include <climits>
#include <cstddef>

#include "links/cuda_abi.h"

namespace ringar::nccl {

using Result = int;  // ncclResult_t, an enum
using DataType = int;
using RedOp = int;
using Stream = cuda::Stream;

#ifdef RINGAR_USE_CUDA_HEADERS
using Comm = ::ncclComm_t;
#else
using Comm = struct ncclComm*;
#endif

constexpr Result kSuccess = 0, kSystemError = 2, kInternalError = 3, kRemoteError = 6,
                 kInProgress = 7;
enum : DataType {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
enum : RedOp { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };
constexpr int kScalarHostImmediate = 1;  // ncclScalarResidence_t: the scalar is read at once
constexpr int kSplitNoColor = -1;

constexpr int kOldestVersion = 21900;  // 2.19: nonblocking communicators that can be split

struct UniqueId {
  char internal[128];
};

// ncclConfig_t as 2.19 has it. Later ones are longer, and take this one by its size.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestVersion;
  int blocking = INT_MIN;  // INT_MIN: not said
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;  // of later versions, in what is padding before
};

// RINGAR_NCCL_FUNCTIONS(F) calls F(name without "nccl", exported name, arguments); all return
// Result.
#define RINGAR_NCCL_FUNCTIONS(F)                                                                  \
  F(GetVersion, ncclGetVersion, (int* version))                                                   \
  F(GetUniqueId, ncclGetUniqueId, (UniqueId * id))                                                \
  F(CommInitRankConfig, ncclCommInitRankConfig,                                                   \
    (Comm * comm, int ranks, UniqueId id, int rank, Config* config))                              \
  F(CommSplit, ncclCommSplit, (Comm comm, int color, int key, Comm* child, Config* config))       \
  F(CommFinalize, ncclCommFinalize, (Comm comm))                                                  \
  F(CommDestroy, ncclCommDestroy, (Comm comm))                                                    \
  F(CommAbort, ncclCommAbort, (Comm comm))                                                        \
  F(CommGetAsyncError, ncclCommGetAsyncError, (Comm comm, Result * error))                        \
  F(RedOpCreatePreMulSum, ncclRedOpCreatePreMulSum,                                               \
    (RedOp * op, void* scalar, DataType type, int residence, Comm comm))                          \
  F(RedOpDestroy, ncclRedOpDestroy, (RedOp op, Comm comm))                                        \
  F(AllReduce, ncclAllReduce,                                                                     \
    (const void* in, void* out, size_t count, DataType type, RedOp op, Comm comm, Stream s))      \
  F(Reduce, ncclReduce,                                                                           \
    (const void* in, void* out, size_t count, DataType type, RedOp op, int root, Comm comm,       \
     Stream s))                                                                                   \
  F(ReduceScatter, ncclReduceScatter,                                                             \
    (const void* in, void* out, size_t count, DataType type, RedOp op, Comm comm, Stream s))      \
  F(AllGather, ncclAllGather,                                                                     \
    (const void* in, void* out, size_t count, DataType type, Comm comm, Stream s))                \
  F(Broadcast, ncclBroadcast,                                                                     \
    (const void* in, void* out, size_t count, DataType type, int root, Comm comm, Stream s))      \
  F(Send, ncclSend, (const void* data, size_t count, DataType type, int to, Comm comm, Stream s)) \
  F(Recv, ncclRecv, (void* data, size_t count, DataType type, int from, Comm comm, Stream s))     \
  F(GroupStart, ncclGroupStart, ())                                                               \
  F(GroupEnd, ncclGroupEnd, ())

struct Functions {
#define RINGAR_DECLARE(name, exported, arguments) Noted<Result arguments> name;
  RINGAR_NCCL_FUNCTIONS(RINGAR_DECLARE)
#undef RINGAR_DECLARE
  const char* (*GetErrorString)(Result result) = nullptr;
  const char* (*GetLastError)(Comm comm) = nullptr;
};

}  // namespace ringar::nccl
