#include "engine/gpu_watch.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "engine/gpu_communicator.h"
#include "engine/thread.h"
#include "engine/wait.h"

namespace ringar {
namespace {

constexpr auto kWatchPeriod = std::chrono::milliseconds(20);

// Data that a rank has sent before it was lost may still be on their way to this GPU, and NCCL sees
// the end of a connection before anybody knows whose it was.
constexpr double kNewsGrace = 1;  // seconds
// A GPU on which not even an aborted kernel ends is not waited for any longer.
constexpr double kAbortDeadline = 60;  // seconds
constexpr double kRestDeadline = 5;    // seconds

constexpr size_t kPoisonAtOnce = 256;  // operations
constexpr unsigned char kNoNumber = 0xFF;
constexpr int kHighest = -1000;  // of priorities: the device's highest is taken

// An error of a collective that has been enqueued, as a message to the user begins.
Status of(const Enqueued& entry, const Status& why) {
  return {why.code(), entry.group->op_state(entry.signature).prefix() + why.message()};
}

}  // namespace

GpuWatch::GpuWatch(const Cuda& driver, cuda::Context context, cuda::Stream stream)
    : driver_(driver), context_(context), stream_(stream) {}

// Of the highest priority, which keeps it out of the hardware's queue of ringar's stream: behind
// the wait for a fence it would never come to open it.
Status GpuWatch::open() {
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, StreamCreateWithPriority, &poisoning_,
                                     cuda::kStreamNonBlocking, kHighest));
  return make_fences();
}

// Some virtual GPUs cannot wait for memory. Without fences, the outputs of what has failed hold
// anything for a moment, before they are filled.
Status GpuWatch::make_fences() {
  constexpr size_t kBytes = (kFences + 1) * sizeof(std::atomic<uint32_t>);
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, MemHostAlloc, &fences_, kBytes,
                                     cuda::kHostPortable | cuda::kHostDeviceMap));
  auto* const words = static_cast<std::atomic<uint32_t>*>(fences_);
  for (size_t i = 0; i <= kFences; ++i) new (&words[i]) std::atomic<uint32_t>(1);
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, MemHostGetDevicePointer, &fences_there_, fences_, 0));
  // Runs the operations of poisoning once, behind the last fence: the driver may have to load them.
  const cuda::Pointer spare = fences_there_ + kFences * sizeof(uint32_t);
  const cuda::Result waited =
      driver_.StreamWaitValue32(poisoning_, spare, 1, cuda::kWaitValueEqual);
  if (waited == cuda::kNotSupported) {
    driver_.MemFreeHost(fences_);
    fences_ = nullptr;
    return {};
  }
  RINGAR_RETURN_IF_ERROR(driver_.check("cuStreamWaitValue32", waited));
  RINGAR_RETURN_IF_ERROR(
      RINGAR_CUDA(driver_, MemsetD8Async, spare, kNoNumber, sizeof(uint32_t), poisoning_));
  return RINGAR_CUDA(driver_, StreamWriteValue32, poisoning_, spare, 1, 0);
}

GpuWatch::~GpuWatch() {
  RINGAR_CHECK(closing_ || !thread_.joinable());
}

bool GpuWatch::close() {
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  news_.notify_all();
  if (thread_.joinable()) thread_.join();
  // Work that a failed call has left in the stream may still wait for a fence.
  if (has_stuck_ || !comes_to_rest()) return false;
  for (const auto& entry : under_way_)
    free_events_.insert(free_events_.end(), {entry->moved, entry->done});
  for (cuda::Event event : free_events_) driver_.EventDestroy(event);
  if (poisoning_) driver_.StreamDestroy(poisoning_);
  if (fences_) driver_.MemFreeHost(fences_);
  return true;
}

bool GpuWatch::comes_to_rest() {
  Lock lock(mutex_);
  const auto apart = apart_;
  cuda::Event end = nullptr;
  if (!take_event(&end).ok()) return false;
  lock.unlock();
  const auto has_ended = [](const auto& call) { return call->load(); };
  const auto rests_in = [&](cuda::Stream stream) {
    return driver_.EventRecord(end, stream) == cuda::kSuccess &&
           wait_at_most(kRestDeadline, Rest::for_gpu(),
                        [&] { return driver_.EventQuery(end) != cuda::kNotReady; });
  };
  bool rests = wait_at_most(kRestDeadline, Rest::for_gpu(),
                            [&] { return std::all_of(apart.begin(), apart.end(), has_ended); });
  // Both streams use the fences, the poisoning stream from the moment when they are opened.
  rests = rests && rests_in(stream_) && (!poisoning_ || rests_in(poisoning_));
  lock.lock();
  free_events_.push_back(end);
  return rests;
}

Status GpuWatch::take_event(cuda::Event* event) {
  if (free_events_.empty())
    return RINGAR_CUDA(driver_, EventCreate, event, cuda::kEventDisableTiming);
  *event = free_events_.back();
  free_events_.pop_back();
  return {};
}

void GpuWatch::make_room() {
  Lock lock(mutex_);
  wait_until(lock, [&] { return under_way_.size() < kFences; });
}

Status GpuWatch::follow(const std::shared_ptr<Enqueued>& entry) {
  const Lock lock(mutex_);
  Status status = take_event(&entry->moved);
  if (status.ok()) status = take_event(&entry->done);
  if (status.ok()) status = enqueue_end(*entry);
  if (!status.ok()) {
    for (cuda::Event event : {entry->moved, entry->done})
      if (event) free_events_.push_back(event);
    return status;
  }
  under_way_.push_back(entry);
  if (entry->group->is_broken() && close_fence(*entry, first_failure_)) poison(*entry);
  if (!thread_.joinable()) thread_ = std::thread([this] { thread_main(); });
  news_.notify_all();
  return {};
}

Status GpuWatch::enqueue_end(Enqueued& entry) {
  RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, EventRecord, entry.moved, stream_));
  if (fences_) {
    const size_t number = followed_++ % kFences;
    entry.fence = static_cast<std::atomic<uint32_t>*>(fences_) + number;
    RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(driver_, StreamWaitValue32, stream_,
                                       fences_there_ + number * sizeof(uint32_t), 1,
                                       cuda::kWaitValueEqual));
  }
  return RINGAR_CUDA(driver_, EventRecord, entry.done, stream_);
}

void GpuWatch::fail(GpuCommunicator& group, const Status& why) {
  const Lock lock(mutex_);
  fail_all(why);
  break_group(group, why);
}

// All groups fail: kernels of another group that wait for the lost rank would block the stream
// behind them, and keep the driver from freeing what an abort frees. Aborts begin after the first
// operation in the poisoning stream, and before the stream can be full of operations that wait for
// them.
void GpuWatch::fail_all(const Status& why) {
  if (first_failure_.ok()) first_failure_ = why;
  std::vector<Enqueued*> failed;
  for (const auto& entry : under_way_)
    if (entry->failure.ok() && close_fence(*entry, why)) failed.push_back(entry.get());
  size_t enqueued = 0;
  auto next = failed.begin();
  for (; next != failed.end() && enqueued < kPoisonAtOnce; ++next) enqueued += poison(**next);
  for (Enqueued* entry : failed) break_group(*entry->group, why);
  for (; next != failed.end(); ++next) poison(**next);
}

// By a thread of its own: an abort may block until the stream has passed all fences.
void GpuWatch::break_group(GpuCommunicator& group, const Status& why) {
  if (group.is_broken()) return;
  group.broke(why);
  start_apart([shared_group = group.shared_from_this()] { shared_group->abort(); });
}

std::shared_ptr<std::atomic<bool>> GpuWatch::start_apart(std::function<void()> call) {
  const auto has_ended = [](const auto& past) { return past->load(); };
  apart_.erase(std::remove_if(apart_.begin(), apart_.end(), has_ended), apart_.end());
  apart_.push_back(std::make_shared<std::atomic<bool>>(false));
  std::thread([&driver = driver_, context = context_, call = std::move(call),
               flag = apart_.back()]() mutable {
    PendingCall::ignore_on_this_thread();
    {
      const CurrentContext current(driver, context);
      call();
    }
    call = nullptr;
    flag->store(true);
  }).detach();
  return apart_.back();
}

void GpuWatch::run_apart(double seconds, std::function<void()> call) {
  Lock lock(mutex_);
  const auto has_ended = start_apart(std::move(call));
  lock.unlock();
  (void)wait_at_most(seconds, Rest::for_gpu(), [&] { return has_ended->load(); });
}

// False for a collective that has passed its fence already: it ended before the failure.
bool GpuWatch::close_fence(Enqueued& entry, const Status& why) {
  if (entry.fence) entry.fence->store(0);
  if (driver_.EventQuery(entry.done) == cuda::kSuccess) {
    if (entry.fence) entry.fence->store(1);
    return false;
  }
  entry.failure = why;
  entry.failed_at = std::chrono::steady_clock::now();
  return true;
}

// Returns how much it has enqueued.
size_t GpuWatch::poison(Enqueued& entry) {
  cuda::Result poisoned = driver_.StreamWaitEvent(poisoning_, entry.moved, 0);
  for (const Enqueued::Range& range : entry.outputs)
    if (poisoned == cuda::kSuccess)
      poisoned = driver_.MemsetD8Async(reinterpret_cast<cuda::Pointer>(range.begin), kNoNumber,
                                       range.bytes, poisoning_);
  if (poisoned == cuda::kSuccess && entry.fence) {
    const auto number = entry.fence - static_cast<std::atomic<uint32_t>*>(fences_);
    driver_.StreamWriteValue32(
        poisoning_, fences_there_ + static_cast<size_t>(number) * sizeof(uint32_t), 1, 0);
  } else if (poisoned == cuda::kSuccess) {
    driver_.EventRecord(entry.done, poisoning_);  // without a fence it is over when it is poisoned
  }
  return entry.outputs.size() + 2;
}

void GpuWatch::look() {
  while (!under_way_.empty()) {
    Enqueued& front = *under_way_.front();
    if (!watchdog_) {
      op_state_.emplace(front.group->op_state(front.signature));
      watchdog_.emplace(front.group->timeouts_past_shutdown(), *op_state_);
    }
    cuda::Result answer = cuda::kSuccess;
    if (has_ended(front, &answer)) {
      retire_front();
    } else if (front.failure.ok()) {
      const Status trouble =
          answer == cuda::kNotReady ? check(front) : driver_.check("cuEventQuery", answer);
      if (trouble.ok()) return;
      fail_all(of(front, trouble));
      break_group(*front.group, first_failure_);
      if (front.failure.ok()) retire_front();  // it had just passed its fence
    } else {
      const std::chrono::duration<double> waited =
          std::chrono::steady_clock::now() - front.failed_at;
      const double deadline = front.group->timeouts_past_shutdown().deadline;
      if (answer == cuda::kNotReady && waited.count() < std::min(kAbortDeadline, deadline)) return;
      has_stuck_ = true;
      retire_front();
    }
  }
}

// A failed collective has ended when it is poisoned and behind its fence.
bool GpuWatch::has_ended(const Enqueued& entry, cuda::Result* answer) const {
  *answer = driver_.EventQuery(entry.failure.ok() ? entry.moved : entry.done);
  return *answer == cuda::kSuccess;
}

// An error if the oldest collective under way will never end.
Status GpuWatch::check(Enqueued& front) {
  const Status of_nccl = front.group->asynchronous_error();
  const auto why = [&] { return front.group->trouble(); };
  const auto whom = [] {
    return std::string("unknown (all have enqueued it; it does not end on one of their GPUs)");
  };
  const Status trouble = watchdog_->check(why, whom);
  if (trouble.code() == RINGAR_DEADLINE) return trouble;
  if (trouble_.ok()) trouble_since_ = watchdog_->seconds();
  if (!trouble.ok())
    trouble_ = of_nccl.ok() ? trouble
                            : Status(trouble.code(), trouble.message() + "; " + of_nccl.message());
  else if (trouble_.ok())
    trouble_ = of_nccl;
  return watchdog_->seconds() - trouble_since_ < kNewsGrace ? Status() : trouble_;
}

void GpuWatch::retire_front() {
  Enqueued& front = *under_way_.front();
  if (!has_stuck_) free_events_.insert(free_events_.end(), {front.moved, front.done});
  front.is_over = true;
  under_way_.pop_front();
  watchdog_.reset();
  op_state_.reset();
  trouble_ = {};
}

void GpuWatch::wait_until(Lock& lock, const std::function<bool()>& over) {
  lock.unlock();
  (void)ringar::wait_until(Rest::for_gpu(), nullptr, [&](bool* done) -> Status {
    lock.lock();
    look();
    *done = over();
    if (!*done) lock.unlock();
    return {};
  });
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
  begin_thread("ringar gpu");
  Lock lock(mutex_);
  while (!closing_) {
    if (under_way_.empty()) {
      news_.wait(lock, [&] { return closing_ || !under_way_.empty(); });
    } else {
      const CurrentContext current(driver_, context_);
      if (current.status().ok()) look();  // if not, who waits will hear of it
      news_.wait_for(lock, kWatchPeriod, [&] { return closing_; });
    }
  }
}

}  // namespace ringar
