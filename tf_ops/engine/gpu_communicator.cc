#include "engine/gpu_communicator.h"

#include <utility>

#include "engine/wait.h"

namespace ringar {
namespace {

// Closing waits for the other ranks: their GPUs may still read from this one's memory.
constexpr double kFarewell = 30;       // seconds
constexpr double kAbortDeadline = 10;  // of a thread that aborts

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
  return NcclCommunicator::create(gpu().nccl(), id, size(), rank_, watchdog(), &communicator_);
}

// Ranks of a part are ordered by their places in it; parts do not overlap, and are told apart by
// the first rank of each.
Status GpuCommunicator::split(GpuCommunicator* part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<NcclCommunicator> communicator;
  const int color = part ? part->job_ranks_.front() : nccl::kSplitNoColor;
  RINGAR_RETURN_IF_ERROR(
      communicator_->split(color, part ? part->rank_ : 0, watchdog(), &communicator));
  if (part) part->communicator_ = std::move(communicator);
  return {};
}

void GpuCommunicator::close(bool in_order) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  // An abort that does not end has the communicator for ever.
  if (!wait_at_most(kAbortDeadline, {}, [&] { return lock.try_lock(); })) return;
  if (!communicator_) return;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(kFarewell);
  const auto wait = [&]() -> Status {
    const std::string why = trouble();
    if (why.empty() && std::chrono::steady_clock::now() < until) return {};
    return {RINGAR_PEER_LOST, "not all ranks have closed their communicators: " + why};
  };
  // A rank that does not come to the farewell does not hold this one back: destroying aborts.
  if (in_order && !is_broken()) (void)communicator_->finish(wait);
  communicator_.reset();
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
    return waiting->watchdog.check([this] { return trouble(); },
                                   [] { return std::string("others"); });
  };
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
