// What is under way on the GPU of this rank, and what becomes of it if another rank is lost.
//
// A collective that was enqueued may fail later: a rank dies in the middle of it, and NCCL's kernel
// waits for ever. So somebody looks after it now and then: a thread of its own, and whoever waits.
// Where a rank is lost, NCCL reports an error, or the deadline has passed, the communicator is
// aborted, and its kernels end with whatever they have written.
//
// That must not be taken for a result. Behind each collective, ringar's stream waits for its gate,
// a word of the host's memory that is 1 as long as all is well. Before a communicator is aborted,
// the gates of all that it has under way are shut; behind a shut gate the outputs are filled with
// bytes of 0xFF, not-a-number in all floating dtypes, and only then it is opened. So a failure
// leaves no wrong numbers behind. The error itself is told to whoever waits, and by every later
// collective of the process set.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/current.h"
#include "engine/signature.h"
#include "engine/status.h"
#include "engine/vigil.h"
#include "links/cuda.h"

namespace ringar {

class GpuGroup;

// A collective that was enqueued.
struct Enqueued {
  struct Range {
    std::byte* begin;
    size_t bytes;
  };

  GpuGroup* group = nullptr;
  Signature signature{};
  std::vector<Range> outputs{};

  // The watch's own.
  cuda::Event moved = nullptr;  // NCCL has done its part
  cuda::Event done = nullptr;   // and the gate was open
  std::atomic<uint32_t>* gate = nullptr;
  Status failure{};
  bool is_over = false;
};

class GpuWatch {
 public:
  // Of one stream. Its context is current wherever a function is called.
  GpuWatch(const Cuda& driver, cuda::Context context, cuda::Stream stream);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  Status open();
  // Follows what was enqueued in the stream since the last call.
  Status follow(const std::shared_ptr<Enqueued>& entry);
  // Ends all that a group has under way with an error, and aborts its communicator.
  void fail(GpuGroup& group, const Status& why);

  // These wait, looking after what is under way, and return the error of what has failed.
  Status wait_for(const Enqueued& entry);
  Status wait_for_all();

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr size_t kGates = 1024;  // as much may be under way

  Status open_gates();
  Status enqueue_end(Enqueued& entry);
  Status take_event(cuda::Event* event);
  bool comes_to_rest();
  void wait_until(Lock& lock, const std::function<bool()>& over);
  void thread_main();
  // These are called with the lock held.
  void look();
  Status check(Enqueued& front);
  void fail_locked(GpuGroup& group, const Status& why);
  void mend(Enqueued& entry);
  void retire_front();

  const Cuda& driver_;
  const cuda::Context context_;
  const cuda::Stream stream_;
  cuda::Stream mending_ = nullptr;
  void* gates_ = nullptr;  // null where the GPU cannot wait for memory
  cuda::Pointer gates_there_ = 0;
  uint64_t followed_ = 0;

  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::shared_ptr<Enqueued>> under_way_;
  std::vector<cuda::Event> free_events_;
  // Of the front of what is under way.
  std::optional<Current> current_;
  std::optional<Vigil> vigil_;
  Status trouble_;
  double trouble_since_ = 0;

  Status first_failure_;
  std::vector<std::thread> aborting_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ringar
