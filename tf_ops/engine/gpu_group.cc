#include "engine/gpu_group.h"

#include <utility>

#include "engine/wait.h"

namespace ringar {
namespace {

// Closing waits for the other ranks: their GPUs may still read from this one's memory.
constexpr double kFarewell = 30;       // seconds
constexpr double kAbortDeadline = 10;  // of a thread that aborts

Patience without_stop(Patience patience) {
  patience.stop = nullptr;
  return patience;
}

}  // namespace

GpuGroup::GpuGroup(std::vector<int> job_ranks, int rank, const World& world, const Current& current,
                   std::function<void(const Status&)> broken)
    : job_ranks_(std::move(job_ranks)),
      rank_(rank),
      world_(world),
      set_(current),
      patience_(without_stop(world.patience)),
      broken_(std::move(broken)) {}

Status GpuGroup::open(const nccl::UniqueId& id) {
  return NcclCommunicator::create(gpu().nccl(), id, size(), rank_, patience(), &communicator_);
}

// Ranks of a part are ordered by their places in it; parts do not overlap, and are told apart by
// the first rank of each.
Status GpuGroup::split(GpuGroup* part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<NcclCommunicator> made;
  const int color = part ? part->job_ranks_.front() : nccl::kSplitNoColor;
  RINGAR_RETURN_IF_ERROR(communicator_->split(color, part ? part->rank_ : 0, patience(), &made));
  if (part) part->communicator_ = std::move(made);
  return {};
}

void GpuGroup::close(bool in_order) {
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
  // Who does not come to the farewell does not hold this rank back: destroying aborts.
  if (in_order && !is_broken()) (void)communicator_->finish(wait);
  communicator_.reset();
}

NcclCommunicator::Wait GpuGroup::patience() const {
  struct Waiting {
    Current current;
    Vigil vigil;
    Waiting(const Patience& patience, const Current& of) : current(of), vigil(patience, current) {}
  };
  auto waiting = std::make_shared<Waiting>(world_.patience, current(set_.signature));
  return [this, waiting] {
    RINGAR_RETURN_IF_ERROR(failure());
    return waiting->vigil.check([this] { return trouble(); }, [] { return std::string("others"); });
  };
}

Current GpuGroup::current(const Signature& signature) const {
  Current current{set_.rank, set_.set_id, set_.slot, job_ranks_, set_.peers};
  current.signature = signature;
  // Who is through with the collective on its host has only enqueued it.
  current.signature.sequence = Peers::kLossOnly;
  return current;
}

std::string GpuGroup::trouble() const {
  for (int rank : job_ranks_) {
    if (rank == set_.rank || !world_.arena || !world_.topology.is_here(rank)) continue;
    const std::string why = world_.arena->loss(world_.topology.arena_place(rank));
    if (!why.empty()) return why;
  }
  return "";
}

Status GpuGroup::asynchronous_error() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && communicator_ ? communicator_->asynchronous_error() : Status();
}

Status GpuGroup::failure() const {
  if (!is_broken()) return {};
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void GpuGroup::broke(const Status& why) {
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_ = why;
  }
  is_broken_.store(true);
  broken_(why);
}

void GpuGroup::abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (communicator_) communicator_->abort();
}

}  // namespace ringar
