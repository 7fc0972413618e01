#include "engine/gpu_communicator.h"

#include <algorithm>
#include <utility>

#include "engine/wait.h"

namespace ringar {
namespace {

// Closing waits for the other ranks: their GPUs may still read from this one's memory.
constexpr double kCloseDeadline = 30;  // seconds
constexpr double kEndDeadline = 10;    // of a call that ends a communicator

Timeouts without_stop(Timeouts timeouts) {
  timeouts.stop = nullptr;
  return timeouts;
}

}  // namespace

GpuCommunicator::GpuCommunicator(std::vector<int> job_ranks, int rank, const World& world,
                                 const OpState& op_state, std::function<void(const Status&)> broken)
    : job_ranks_(std::move(job_ranks)),
      rank_(rank),
      world_(world),
      set_(op_state),
      timeouts_(without_stop(world.timeouts)),
      broken_(std::move(broken)) {}

Status GpuCommunicator::open(const nccl::UniqueId& id) {
  Fresh fresh;
  const Status opening =
      NcclCommunicator::create(gpu().nccl(), id, size(), rank_, watchdog(), &fresh);
  return keep(opening, std::move(fresh));
}

// Nobody waits for the abort, which joins the threads that NCCL has started: they may be stuck.
Status GpuCommunicator::keep(const Status& opening, Fresh fresh) {
  if (opening.ok()) {
    communicator_ = std::move(fresh);
  } else if (fresh) {
    gpu().watch().run_apart(0, [left = std::shared_ptr(std::move(fresh))] { left->abort(); });
  }
  return opening;
}

Status GpuCommunicator::lock(std::unique_lock<std::mutex>* lock) {
  *lock = std::unique_lock(mutex_, std::defer_lock);
  const auto look = [&](bool* done) -> Status {
    *done = lock->try_lock();
    return failure();
  };
  return wait_until(Rest::for_gpu(), nullptr, look);
}

// Ranks of a part are ordered by their places in it; parts do not overlap, and are told apart by
// the first rank of each.
Status GpuCommunicator::split(GpuCommunicator* part) {
  std::unique_lock<std::mutex> locked;
  RINGAR_RETURN_IF_ERROR(lock(&locked));
  Fresh fresh;
  const int color = part ? part->job_ranks_.front() : nccl::kSplitNoColor;
  const Status opening = communicator_->split(color, part ? part->rank_ : 0, watchdog(), &fresh);
  return part ? part->keep(opening, std::move(fresh)) : opening;
}

void GpuCommunicator::close(bool in_order) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  // An abort that does not end has the communicator for ever.
  const double patience = std::min(kEndDeadline, timeouts_.deadline);
  if (!wait_at_most(patience, {}, [&] { return lock.try_lock(); })) return;
  if (!communicator_) return;
  const double farewell = std::min(kCloseDeadline, timeouts_.deadline);
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(farewell);
  const auto wait = [&]() -> Status {
    const std::string why = trouble();
    if (why.empty() && std::chrono::steady_clock::now() < until) return {};
    return {RINGAR_PEER_LOST, "not all ranks have closed their communicators: " + why};
  };
  // A rank that does not come to the farewell does not hold this one back.
  const bool in_peace = in_order && !is_broken() && communicator_->finalize(wait).ok();
  gpu().watch().run_apart(patience, [in_peace, last = std::shared_ptr(std::move(communicator_))] {
    in_peace ? (void)last->destroy() : last->abort();
  });
}

NcclCommunicator::Wait GpuCommunicator::watchdog() const {
  struct Waiting {
    OpState op_state;
    Watchdog watchdog;
    Waiting(const Timeouts& timeouts, const OpState& of)
        : op_state(of), watchdog(timeouts, op_state) {}
  };
  auto waiting = std::make_shared<Waiting>(world_.timeouts, op_state(set_.signature));
  return [this, waiting] {
    RINGAR_RETURN_IF_ERROR(failure());
    return waiting->watchdog.check([this] { return trouble(); }, [this] { return peers(); });
  };
}

std::string GpuCommunicator::peers() const {
  constexpr size_t kMost = 8;
  std::string text;
  size_t count = 0;
  for (int rank : job_ranks_)
    if (rank != set_.rank && ++count <= kMost)
      text += (count > 1 ? ", " : "") + std::to_string(rank);
  return text + (count > kMost ? ", … (NCCL does not tell which)" : " (NCCL does not tell which)");
}

OpState GpuCommunicator::op_state(const Signature& signature) const {
  OpState op_state{set_.rank, set_.set_id, set_.slot, job_ranks_, set_.peers};
  op_state.signature = signature;
  // A rank whose call has returned has only enqueued the collective.
  op_state.signature.sequence = Peers::kLossOnly;
  return op_state;
}

std::string GpuCommunicator::trouble() const {
  for (int rank : job_ranks_) {
    if (rank == set_.rank || !world_.segment || !world_.topology.is_here(rank)) continue;
    const std::string why = world_.segment->loss(world_.topology.segment_place(rank));
    if (!why.empty()) return why;
  }
  return "";
}

Status GpuCommunicator::asynchronous_error() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && communicator_ ? communicator_->asynchronous_error() : Status();
}

Status GpuCommunicator::failure() const {
  if (!is_broken()) return {};
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void GpuCommunicator::broke(const Status& why) {
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_ = why;
  }
  is_broken_.store(true);
  broken_(why);
}

void GpuCommunicator::abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (communicator_) communicator_->abort();
}

}  // namespace ringar
