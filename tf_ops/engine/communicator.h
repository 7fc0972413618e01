// One process set of one rank: runs its collectives, one after the other.
//
// The ranks of a set are grouped twice. Those of one host share memory (IntraNodeCommunicator).
// Across hosts they are numbered alike: the first rank of each host makes rail 0, the second ones
// rail 1, and so on, as far as every host has one. A rail is an InterNodeCommunicator, and so is
// the set as a whole.
//
//               rail 0     rail 1
//     host 0    rank 0     rank 1        shared segment
//     host 1    rank 2     rank 3        shared segment
//                 link       link

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/gpu_communicator.h"
#include "engine/inter_node_communicator.h"
#include "engine/intra_node_communicator.h"
#include "engine/request.h"
#include "engine/staging_buffers.h"
#include "engine/world.h"

namespace ringar {

class Communicator {
 public:
  // `ranks` are ranks of the job, this rank among them. No other set has the same `slot` at a time.
  // Memory lies at `offset` of the shared segment's generation.
  Communicator(int id, int slot, std::vector<int> ranks, const World& world, uint64_t offset);
  ~Communicator();

  // The bytes of this host's shared segment that a set takes. Before it is made, each of its ranks
  // reserves its part.
  static size_t shared_bytes(const std::vector<int>& ranks, const Topology& topology);
  static Status reserve(const std::vector<int>& ranks, const World& world, uint64_t offset);

  // Runs a collective to its end. After a lost peer or a missed deadline the ranks are no longer at
  // the same step, and every later call returns that same error.
  Status run(Request& request);

  int rank() const { return rank_; }  // this one's place among `ranks`
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  bool is_broken() const { return is_broken_.load(); }
  // From now on every collective returns this error, and the other ranks are told. Any thread.
  void break_for_good(const Status& failure);
  // Ends what this set has under way on GPUs. All its ranks do so at the same place.
  void close_gpus();
  bool stores_past_caches(size_t bytes) const { return host_->stores_past_caches(bytes); }
  bool has_memory() const { return host_->has_memory(); }

  // For algorithms ------------------------------------------------------------------------------

  const World& world() const { return world_; }
  OpState& op_state() { return op_state_; }
  IntraNodeCommunicator& host() { return *host_; }
  int hosts() const { return hosts_; }
  int rails() const { return rails_; }
  // Null for a rank that is in none: its host has more ranks than another one.
  InterNodeCommunicator* rail() { return rail_ ? &*rail_ : nullptr; }
  // All ranks, those of a host side by side; there only if the job has a link.
  InterNodeCommunicator& everybody() { return *everybody_; }
  // The longest array that a handshake can carry: with its consistency check it fits into every
  // host's send buffers.
  size_t handshake_bytes() const { return handshake_bytes_; }
  // The set's rank at a place in everybody().
  int set_rank(int place) const { return order_[static_cast<size_t>(place)]; }
  int place_of(int set_rank) const { return places_[static_cast<size_t>(set_rank)]; }
  StagingBuffers& buffers() { return buffers_; }
  // Runs a part of a collective that is in the memory of hosts. All ranks do so.
  Status run_on_hosts(Request& request);
  // All ranks, in the set's order, and those of this host, of which the set's number `first_here`
  // comes first.
  const std::shared_ptr<GpuCommunicator>& gpus() const { return gpus_; }
  const std::shared_ptr<GpuCommunicator>& gpus_here() const { return gpus_here_; }
  int first_here() const { return first_here_; }

 private:
  void group(uint64_t offset);
  void group_gpus(const std::vector<int>& local_ranks, int place);
  Algorithm algorithm_for(const Spec& spec) const;
  std::string rejection(const Request& request) const;
  std::string rejection_on_gpu(const Request& request) const;
  Status failure() const;
  Status dispatch(Request& request);

  const int id_;
  const std::vector<int> ranks_;
  const int rank_;
  const World& world_;
  OpState op_state_;
  std::vector<int> order_;   // the set's ranks, host by host
  std::vector<int> places_;  // of each of the set's ranks in order_
  int hosts_ = 1, rails_ = 1;
  size_t handshake_bytes_ = 0;
  std::unique_ptr<IntraNodeCommunicator> host_;
  std::optional<InterNodeCommunicator> rail_, everybody_;
  StagingBuffers buffers_;
  uint64_t sequence_ = 0;  // collectives begun
  std::shared_ptr<GpuCommunicator> gpus_, gpus_here_;
  int first_here_ = 0;
  mutable std::mutex broken_mutex_;
  Status broken_;
  std::atomic<bool> is_broken_{false};
};

}  // namespace ringar
