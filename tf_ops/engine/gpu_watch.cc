#include "engine/gpu_watch.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "engine/gpu_group.h"

namespace ringar {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kNap = std::chrono::microseconds(50);
constexpr int kEagerLooks = 200;  // of a waiting caller, before it naps

// A rank that leaves has done its part: what it has sent may still be on its way to this GPU.
constexpr double kGrace = 1;  // seconds
// A GPU on which not even an aborted kernel ends is not waited for any longer.
constexpr double kAbortDeadline = 60;
constexpr auto kRestDeadline = std::chrono::seconds(5);

constexpr unsigned char kNoNumber = 0xFF;

// An error of a collective that has been enqueued, as a message to the user begins.
Status of(const Enqueued& entry, const Status& why) {
  return {why.code(), entry.group->current(entry.signature).prefix() + why.message()};
}

}  // namespace

GpuWatch::GpuWatch(const Cuda& driver, cuda::Context context, cuda::Stream stream)
    : driver_(driver), context_(context), stream_(stream) {}

Status GpuWatch::open() {
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, StreamCreate, &mending_, cuda::kStreamNonBlocking));
  return open_gates();
}

// Some virtual GPUs cannot wait for memory. Without gates, the outputs of what has failed hold
// anything for a moment, before they are filled.
Status GpuWatch::open_gates() {
  constexpr size_t kBytes = kGates * sizeof(std::atomic<uint32_t>);
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, MemHostAlloc, &gates_, kBytes,
                                     cuda::kHostPortable | cuda::kHostDeviceMap));
  auto* const words = static_cast<std::atomic<uint32_t>*>(gates_);
  for (size_t i = 0; i < kGates; ++i) new (&words[i]) std::atomic<uint32_t>(1);
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, MemHostGetDevicePointer, &gates_there_, gates_, 0));
  const cuda::Result tried =
      driver_.StreamWaitValue32(mending_, gates_there_, 1, cuda::kWaitValueEqual);
  if (tried == cuda::kNotSupported) {
    driver_.MemFreeHost(gates_);
    gates_ = nullptr;
    return {};
  }
  return driver_.check("cuStreamWaitValue32", tried);
}

GpuWatch::~GpuWatch() {
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  news_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (std::thread& thread : aborting_) thread.join();
  // What a call that failed has left in the stream may still wait for a gate.
  if (!comes_to_rest()) return;
  for (const auto& entry : under_way_)
    free_events_.insert(free_events_.end(), {entry->moved, entry->done});
  for (cuda::Event event : free_events_) driver_.EventDestroy(event);
  if (mending_) driver_.StreamDestroy(mending_);
  if (gates_) driver_.MemFreeHost(gates_);
}

bool GpuWatch::comes_to_rest() {
  cuda::Event end = nullptr;
  if (!take_event(&end).ok()) return false;
  free_events_.push_back(end);
  if (driver_.EventRecord(end, stream_) != cuda::kSuccess) return false;
  const auto until = std::chrono::steady_clock::now() + kRestDeadline;
  while (driver_.EventQuery(end) == cuda::kNotReady) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(kNap);
  }
  return true;
}

Status GpuWatch::take_event(cuda::Event* event) {
  if (free_events_.empty())
    return RINGAR_CUDA(driver_, EventCreate, event, cuda::kEventDisableTiming);
  *event = free_events_.back();
  free_events_.pop_back();
  return {};
}

Status GpuWatch::follow(const std::shared_ptr<Enqueued>& entry) {
  Lock lock(mutex_);
  wait_until(lock, [&] { return under_way_.size() < kGates; });
  Status ended = take_event(&entry->moved);
  if (ended.ok()) ended = take_event(&entry->done);
  if (ended.ok()) ended = enqueue_end(*entry);
  if (!ended.ok()) {
    for (cuda::Event event : {entry->moved, entry->done})
      if (event) free_events_.push_back(event);
    return ended;
  }
  under_way_.push_back(entry);
  if (entry->group->is_broken()) {
    entry->failure = first_failure_;
    if (entry->gate) entry->gate->store(0);
  }
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { thread_main(); });
    pthread_setname_np(thread_.native_handle(), "ringar gpu");
  }
  lock.unlock();
  news_.notify_all();
  return {};
}

Status GpuWatch::enqueue_end(Enqueued& entry) {
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, EventRecord, entry.moved, stream_));
  if (gates_) {
    const size_t number = followed_++ % kGates;
    entry.gate = static_cast<std::atomic<uint32_t>*>(gates_) + number;
    RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, StreamWaitValue32, stream_,
                                       gates_there_ + number * sizeof(uint32_t), 1,
                                       cuda::kWaitValueEqual));
  }
  return RINGAR_CUDA(driver_, EventRecord, entry.done, stream_);
}

void GpuWatch::fail(GpuGroup& group, const Status& why) {
  const Lock lock(mutex_);
  fail_locked(group, why);
}

// The communicator is aborted by a thread of its own: that may wait for kernels which come behind a
// gate that is to be opened here.
void GpuWatch::fail_locked(GpuGroup& group, const Status& why) {
  if (group.is_broken()) return;
  if (first_failure_.ok()) first_failure_ = why;
  for (const auto& entry : under_way_) {
    if (entry->group != &group) continue;
    if (entry->gate) entry->gate->store(0);
    entry->failure = why;
  }
  group.broke(why);
  aborting_.emplace_back([this, kept = group.shared_from_this()] {
    const CurrentContext current(driver_, context_);
    kept->abort();
  });
}

void GpuWatch::look() {
  while (!under_way_.empty()) {
    Enqueued& front = *under_way_.front();
    if (!vigil_) {
      current_.emplace(front.group->current(front.signature));
      vigil_.emplace(front.group->patience_with_shutdown(), *current_);
    }
    const cuda::Result moved = driver_.EventQuery(front.moved);
    if (moved == cuda::kNotReady) {
      if (front.failure.ok()) {
        const Status wrong = check(front);
        if (!wrong.ok()) fail_locked(*front.group, of(front, wrong));
      }
      if (front.failure.ok() || vigil_->seconds() < kAbortDeadline) return;
    } else if (moved != cuda::kSuccess && front.failure.ok()) {
      fail_locked(*front.group, of(front, driver_.check("cuEventQuery", moved)));
    } else if (!front.failure.ok()) {
      mend(front);
    }
    retire_front();
  }
}

// Why the front of what is under way will never end, if so.
Status GpuWatch::check(Enqueued& front) {
  RINGAR_RETURN_IF_ERROR(front.group->asynchronous_error());
  const auto why = [&] { return front.group->trouble(); };
  const auto whom = [] {
    return std::string("unknown (all have enqueued it; it does not end on one of their GPUs)");
  };
  const Status trouble = vigil_->check(why, whom);
  if (trouble.ok() || trouble.code() == RINGAR_DEADLINE) return trouble;
  if (trouble_.ok()) trouble_since_ = vigil_->seconds();
  trouble_ = trouble;
  return vigil_->seconds() - trouble_since_ < kGrace ? Status() : trouble;
}

// What is behind the gate already has been handed on: it was there before the failure.
void GpuWatch::mend(Enqueued& entry) {
  if (driver_.EventQuery(entry.done) != cuda::kSuccess || !entry.gate) {
    for (const Enqueued::Range& range : entry.outputs)
      driver_.MemsetD8Async(reinterpret_cast<cuda::Pointer>(range.begin), kNoNumber, range.bytes,
                            mending_);
    driver_.StreamSynchronize(mending_);
  }
}

void GpuWatch::retire_front() {
  Enqueued& front = *under_way_.front();
  if (front.gate) front.gate->store(1);
  free_events_.insert(free_events_.end(), {front.moved, front.done});
  front.is_over = true;
  under_way_.pop_front();
  vigil_.reset();
  current_.reset();
  trouble_ = {};
}

void GpuWatch::wait_until(Lock& lock, const std::function<bool()>& over) {
  for (int looks = 0;; ++looks) {
    look();
    if (over()) return;
    lock.unlock();
    if (looks < kEagerLooks)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kNap);
    lock.lock();
  }
}

Status GpuWatch::wait_for(const Enqueued& entry) {
  Lock lock(mutex_);
  wait_until(lock, [&] { return entry.is_over; });
  return entry.failure;
}

Status GpuWatch::wait_for_all() {
  Lock lock(mutex_);
  wait_until(lock, [&] { return under_way_.empty(); });
  return first_failure_;
}

void GpuWatch::thread_main() {
  // Or asking for an event would end the capture of a graph on another thread.
  int mode = cuda::kCaptureRelaxed;
  driver_.ThreadExchangeStreamCaptureMode(&mode);
  Lock lock(mutex_);
  while (!closing_) {
    if (under_way_.empty()) {
      news_.wait(lock, [&] { return closing_ || !under_way_.empty(); });
    } else {
      const CurrentContext current(driver_, context_);
      if (!current.status().ok())
        for (const auto& entry : under_way_)
          fail_locked(*entry->group, of(*entry, current.status()));
      else
        look();
      news_.wait_for(lock, kLook, [&] { return closing_; });
    }
  }
}

}  // namespace ringar
