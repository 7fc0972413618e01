// NCCL: its functions, its errors, and communicators in which no rank hangs.
//
// Communicators are nonblocking: a call returns while NCCL is still at work, and whoever waits for
// it looks after the other ranks meanwhile. A lost rank makes the wait an error, and abort() ends
// the kernels that it has left on the GPU.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/status.h"
#include "engine/types.h"
#include "links/nccl_abi.h"

namespace ringar {

// From this version on, several ranks may share a GPU where NCCL_MULTI_RANK_GPU_ENABLE says so.
constexpr int kSharesGpus = 23000;
// What to do where they may not.
constexpr const char* kOneGpuEach =
    "Give each rank a GPU: start the job by ringarrun, or call ringar.init() before the first "
    "TensorFlow operation; or set NCCL_MULTI_RANK_GPU_ENABLE=1, with NCCL 2.30 or later";

std::string version_text(int version);  // "2.27.3"

struct Nccl : nccl::Functions {
  int version = 0;

  // The result of a call, as a Status that names the call and NCCL's text of the error.
  Status check(const char* call, nccl::Result result, nccl::Comm comm = nullptr) const;
};

// RINGAR_NCCL(library, GroupStart, ...): the call, as a Status; of one that returns at once.
#define RINGAR_NCCL(library, name, ...) (library).check("nccl" #name, (library).name(__VA_ARGS__))

// Opened once; later calls get the same answer. `library` may be empty: libnccl.so.2.
Status open_nccl(const std::string& library, const Nccl** functions);

// Of reductions; others move bytes.
nccl::DataType nccl_type(DataType type);
// Whether a floating dtype can hold the factor of a sum, which becomes neither 0 nor infinite.
bool nccl_has_factor(DataType type, double factor);

class NcclCommunicator {
 public:
  // Called again and again while NCCL is at work; an error ends the waiting.
  using Wait = std::function<Status()>;

  // The context of the rank's GPU is current wherever one of these is called.
  //
  // Also after an error there may be a communicator, here and from split(): to be aborted.
  static Status create(const Nccl& nccl, const nccl::UniqueId& id, int ranks, int rank,
                       const Wait& wait, std::unique_ptr<NcclCommunicator>* communicator);
  // Of all ranks of this one. `color`: those with the same one get a communicator, in which they
  // are ordered by `key`; null for nccl::kSplitNoColor.
  Status split(int color, int key, const Wait& wait,
               std::unique_ptr<NcclCommunicator>* communicator);
  // Ends nothing: destroy() and abort() may block for ever, which needs a thread of its own.
  ~NcclCommunicator() = default;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  nccl::Comm handle() const { return comm_; }
  // Calls as one; enqueued when this returns.
  Status group(const std::function<Status()>& calls, const Wait& wait);
  // The operator of a reduction: for a sum, of elements that are multiplied by `factor` before.
  // release() has to follow.
  Status acquire(ReduceOp op, DataType type, double factor, nccl::RedOp* result);
  void release(nccl::RedOp op);

  // An error of NCCL's own threads: a broken connection, say.
  Status asynchronous_error();
  // Waits until all that it was given is done; all ranks call it. Then destroy() may follow.
  Status finalize(const Wait& wait);
  // These may block: NCCL frees memory of the GPU, which waits for kernels, and waits for ranks of
  // the host that have not called the same.
  Status destroy();
  void abort();

 private:
  NcclCommunicator(const Nccl& nccl, nccl::Comm comm) : nccl_(nccl), comm_(comm) {}
  Status settle(const char* call, nccl::Result result, const Wait& wait);

  const Nccl& nccl_;
  nccl::Comm comm_;
};

}  // namespace ringar
