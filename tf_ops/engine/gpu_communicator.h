// Ranks of one process set that reach each other through NCCL: all of them, or those of one host.

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/gpu.h"
#include "engine/world.h"
#include "links/nccl.h"

namespace ringar {

class Communicator;

class GpuCommunicator : public std::enable_shared_from_this<GpuCommunicator> {
 public:
  // `rank` is this one's place among `job_ranks`. `broken` is told, on any thread, when the group
  // has failed for good.
  GpuCommunicator(std::vector<int> job_ranks, int rank, const World& world, const OpState& op_state,
                  std::function<void(const Status&)> broken);
  GpuCommunicator(const GpuCommunicator&) = delete;
  GpuCommunicator& operator=(const GpuCommunicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(job_ranks_.size()); }
  Gpu& gpu() const { return *world_.gpu; }

  // Who uses the communicator has locked it; abort() waits for that. An error if it is broken, and
  // then an abort may have it for ever.
  Status lock(std::unique_lock<std::mutex>* lock);
  bool is_open() const { return communicator_ != nullptr; }
  NcclCommunicator& communicator() { return *communicator_; }
  Status open(const nccl::UniqueId& id);
  // Gives each rank its part of another group, of ranks of this one; null: it has none.
  // Collective over this group.
  Status split(GpuCommunicator* part);
  // Nothing is under way any longer. In order: all ranks do so at the same place.
  void close(bool in_order);

  // Waits for NCCL as long as no rank is lost and the deadline has not passed.
  NcclCommunicator::Wait watchdog() const;

  // For the watch -------------------------------------------------------------------------------

  // The prefix of messages about one collective, and the ranks that it waits for.
  OpState op_state(const Signature& signature) const;
  const Timeouts& timeouts_past_shutdown() const { return timeouts_; }
  // Why a rank will not do its part, or "".
  std::string trouble() const;
  // Of NCCL; nothing while somebody uses the communicator.
  Status asynchronous_error();
  void broke(const Status& why);
  bool is_broken() const { return is_broken_.load(); }
  Status failure() const;  // why it is broken
  void abort();

 private:
  std::string peers() const;  // the ranks that this one may be waiting for
  using Fresh = std::unique_ptr<NcclCommunicator>;
  // Keeps a new communicator, or aborts what an error has left of it.
  Status keep(const Status& opening, Fresh fresh);

  const std::vector<int> job_ranks_;
  const int rank_;
  const World& world_;
  const OpState& set_;
  // Also while this rank shuts down, it waits for collectives under way.
  const Timeouts timeouts_;
  const std::function<void(const Status&)> broken_;
  std::mutex mutex_;
  std::unique_ptr<NcclCommunicator> communicator_;
  mutable std::mutex failure_mutex_;
  Status failure_;
  std::atomic<bool> is_broken_{false};
};

}  // namespace ringar
