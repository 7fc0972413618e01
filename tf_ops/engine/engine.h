// The engine of one rank: its process sets, each of which runs its own requests (process_set.h),
// its messages, and what all of them share.

#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/gpu.h"
#include "engine/point_to_point.h"
#include "engine/process_set.h"
#include "engine/shares.h"
#include "engine/window.h"
#include "engine/world.h"

namespace ringar {

class Engine : private ProcessSet::Owner {
 public:
  // `link`: how this rank reaches the others beyond shared memory; null in a job on one host.
  explicit Engine(const ringar_config& config, std::unique_ptr<Link> link = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status start();  // waits for all ranks
  // Ends what is under way and what is to come with an error, and tells the other ranks. Returns
  // when no thread runs a collective any longer.
  void stop();

  // The process set in whose line a request has its ticket: its own, or that of all ranks for
  // messages.
  static int line_of(const Spec& spec) {
    return is_message(spec.collective) ? 0 : spec.process_set;
  }
  // A place in a line, for a request that is submitted later; see tickets.h.
  uint64_t draw_ticket(int64_t step, int line = 0);
  // Gives up a ticket, unless a request has been submitted with it.
  void let_go(uint64_t ticket, int line = 0);
  // Ends the requests announced in a step, one of whose collectives has failed before its
  // submission. Returns whether there were any.
  bool end_step(int64_t step, const Status& status) override;
  // Takes the request over until its complete() is called, possibly before submit returns.
  void submit(Request* request);
  // Runs the request and returns its status; complete() is not called.
  Status run(Request& request);

  Status add_process_set(const std::vector<int>& ranks, int* id);
  Status remove_process_set(int id);

  // Collective over the ranks of the spec's process set, with its dtype and name. Each has a part
  // of its own length; the process set must be in use as long as the window.
  Status open_window(const Spec& spec, int64_t length, int64_t chunk_bytes,
                     std::shared_ptr<Window>* window);
  Status close_window(const std::shared_ptr<Window>& window);

  // Of this rank, opened with the first collective there.
  Gpu& gpu() { return *world_.gpu; }
  // Waits for a collective that was enqueued, or for all of them.
  Status wait_on_gpu(const OnGpu& enqueued);
  Status synchronize_gpu();

  // Messages with a tag from a rank of the job will not be received.
  void forget(int peer, int tag) { point_to_point_->forget(peer, tag); }

  // Whether a process set of this rank has broken, or a channel of its messages.
  bool has_failed();

  // Memory for outputs that the other ranks may write to; null where there is none.
  std::shared_ptr<OutputPool> outputs() const { return segment_ ? segment_->outputs() : nullptr; }

  // The weights of ranks in averages, and the data that they exchange beside gradients.
  Shares& shares() { return shares_; }

  // Up to so many bytes, waking a thread takes longer than running a request.
  size_t inline_bytes() const { return inline_bytes_; }

  // See World, and calibration.h.
  size_t past_caches_bytes() const { return world_.past_caches_bytes; }
  size_t bucket_bytes() const { return bucket_bytes_; }
  bool has_calibrated() const { return has_calibrated_; }

  // Null if this rank is no member, or the set does not exist.
  std::shared_ptr<const Communicator> process_set(int id);

 private:
  struct Area {
    uint64_t offset;
    std::vector<int> ranks;
    int slot;  // see Communicator
  };

  Status join_host();
  Status meet();
  Status calibrate_between_hosts();
  Status calibrate();
  Status split_gpus(Communicator* part);
  Status gpu_has_failed(const char* where, const Status& why);
  Area next_area(const std::vector<int>& ranks) const;
  std::string reserve(const std::vector<int>& ranks, std::shared_ptr<ProcessSet>* set);
  Status install(const std::vector<int>& ranks, std::shared_ptr<ProcessSet> set, int* id);
  Status discard(int id);
  std::shared_ptr<ProcessSet> find(int id, Status* refusal = nullptr);
  std::shared_ptr<ProcessSet> line_for(const Spec& spec, Status* refusal);
  std::vector<std::shared_ptr<ProcessSet>> sets();
  // The other rank of a message, in the job; `refusal` tells why there is none.
  int peer_of(const Request& request, Status* refusal);
  std::string map_parts(const std::vector<int>& ranks, const std::vector<Window::Place>& places,
                        const WindowLayout& layout, std::unique_ptr<WindowMemory> memory,
                        std::vector<Window::Member>* members);
  std::shared_ptr<WindowSpace> window_space();
  std::shared_ptr<WindowService> window_service();
  void stop_window_service();
  void forget_windows();
  void note_failure(int64_t step, const Status& status);
  void end_step_by(const Request& failed, const Status& status);
  bool end_step_of(int64_t step, const Status& status, const int* failed_set);

  void post(Request* request) override;
  Status run_message(Request& request) override;
  void finish_in_step(Request* request, const Status& status) override;
  Status failure_of(int64_t step) const override;
  std::string who() const { return "rank " + std::to_string(config_.rank) + " | "; }

  const ringar_config config_;
  const size_t inline_bytes_;  // see tuning.h
  std::atomic<bool> stopping_{false}, has_left_{false};
  World world_;
  size_t bucket_bytes_ = 0;  // 0: not known
  bool asks_to_calibrate_ = false, has_calibrated_ = false;
  const std::unique_ptr<Link> link_;
  std::unique_ptr<SharedSegment> segment_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<PointToPoint> point_to_point_;
  const std::unique_ptr<Gpu> gpu_;
  Shares shares_;

  // Nothing else is locked while this is.
  mutable std::mutex sets_mutex_;
  uint64_t next_offset_ = 0;
  int next_id_ = 0;
  std::map<int, Area> areas_;
  std::map<int, std::shared_ptr<ProcessSet>> sets_;  // those that this rank is a member of
  std::shared_ptr<ProcessSet> all_ranks_;  // the same as sets_[0], from start() on: needs no lock
  // Those that are open, whoever else refers to them: other ranks count on this one's parts.
  std::set<std::shared_ptr<Window>> windows_;
  std::shared_ptr<WindowSpace> window_space_;
  std::shared_ptr<WindowService> window_service_;

  mutable std::mutex failure_mutex_;
  std::atomic<int64_t> last_failed_step_{kNoStep}, last_step_with_messages_{kNoStep};
  Status last_failure_;
};

}  // namespace ringar
