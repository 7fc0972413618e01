// The collectives under way on the GPU of this rank, and their end if another rank is lost.
//
// A collective that was enqueued may fail later: a rank dies in the middle of it, and NCCL's kernel
// waits for ever. So somebody looks after it now and then: a thread of its own, and whoever waits.
// Where a rank is lost, NCCL reports an error, or the deadline has passed, all communicators that
// have something under way are aborted, and their kernels end with partial outputs.
//
// These must not be taken for results. Behind each collective, ringar's stream waits for its fence,
// a word of the host's memory that is 1 as long as all is well. Before anything is aborted, the
// fences of all that is under way are closed, and in another stream it is enqueued, for each of
// them,
//
//     wait(moved) | outputs = 0xFF … | fence = 1
//
// So the GPU fills failed outputs with not-a-number before it hands them on, without the host: the
// aborting thread may block in the driver until all of that has passed. Callers that wait get the
// error itself, and so does every later collective of the process sets.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/op_state.h"
#include "engine/signature.h"
#include "engine/status.h"
#include "engine/watchdog.h"
#include "links/cuda.h"

namespace ringar {

class GpuCommunicator;

// A collective that was enqueued.
struct Enqueued {
  struct Range {
    std::byte* begin;
    size_t bytes;
  };

  GpuCommunicator* group = nullptr;
  Signature signature{};
  std::vector<Range> outputs{};

  // The watch's own.
  cuda::Event moved = nullptr;  // NCCL has done its part
  cuda::Event done = nullptr;   // and the fence was open
  std::atomic<uint32_t>* fence = nullptr;
  Status failure{};
  std::chrono::steady_clock::time_point failed_at{};
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
  // Waits until there is room for one more; to be called before the group is locked.
  void make_room();
  // Follows what was enqueued in the stream since the last call.
  Status follow(const std::shared_ptr<Enqueued>& entry);
  // Ends all collectives under way with an error, and aborts their communicators and that of
  // `group`, whose kernels a failed call may have left in the stream.
  void fail(GpuCommunicator& group, const Status& why);
  // Runs a call that may never return in a thread of its own, and waits for it for so many seconds.
  void run_apart(double seconds, std::function<void()> call);
  // Waits a few seconds for the streams to come to rest, if they do.
  bool comes_to_rest();
  // Ends the watch; nothing is under way afterwards. False if work on the GPU does not end: then
  // all that it may still use has to stay.
  bool close();

  // These wait, looking after what is under way, and return the error of what has failed.
  Status wait_for(const Enqueued& entry);
  Status wait_for_all();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // The most collectives under way. The driver's queues hold a few times as many, and a call that
  // finds them full blocks.
  static constexpr size_t kFences = 64;

  Status make_fences();
  Status enqueue_end(Enqueued& entry);
  Status take_event(cuda::Event* event);
  void wait_until(Lock& lock, const std::function<bool()>& over);
  void thread_main();
  // These are called with the lock held.
  void look();
  Status check(Enqueued& front);
  void fail_all(const Status& why);
  void break_group(GpuCommunicator& group, const Status& why);
  std::shared_ptr<std::atomic<bool>> start_apart(std::function<void()> call);
  bool close_fence(Enqueued& entry, const Status& why);
  size_t poison(Enqueued& entry);
  bool has_ended(const Enqueued& entry, cuda::Result* answer) const;
  void retire_front();

  const Cuda& driver_;
  const cuda::Context context_;
  const cuda::Stream stream_;
  cuda::Stream poisoning_ = nullptr;
  void* fences_ = nullptr;  // null where the GPU cannot wait for memory
  cuda::Pointer fences_there_ = 0;
  uint64_t followed_ = 0;

  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::shared_ptr<Enqueued>> under_way_;
  std::vector<cuda::Event> free_events_;
  // Of the oldest collective under way.
  std::optional<OpState> op_state_;
  std::optional<Watchdog> watchdog_;
  Status trouble_;
  double trouble_since_ = 0;

  Status first_failure_;
  std::vector<std::shared_ptr<std::atomic<bool>>> apart_;  // whether each call has ended
  bool has_stuck_ = false;  // something that does not end has been given up
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ringar
