// The engine of one rank: requests in, in the order of issue, completions out.
//
// One request runs at a time: ranks issue the same requests in the same order, so an order of our
// own could only be wrong. Whoever holds the baton runs requests. When it is free, a caller that
// must wait anyway (NumPy, a compiled TensorFlow step) runs its request itself, and so does whoever
// issues a short one: no thread to wake. Everything else is done by the engine's own thread.
//
// Messages from one rank to another are only passed on, in that order; see mail.h.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/communicator.h"
#include "engine/gpu.h"
#include "engine/mail.h"
#include "engine/queue.h"
#include "engine/shares.h"
#include "engine/turns.h"
#include "engine/world.h"

namespace ringar {

class Engine {
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

  // The place in line of a request that will be submitted with it; see turns.h.
  uint64_t draw_turn(int64_t step);
  // Ends what was announced in a step, of which one collective fails before it can be submitted.
  // Returns whether there was anything.
  bool end_step(int64_t step, const Status& status);
  // Takes the request over until its complete() is called, possibly before submit returns.
  void submit(Request* request);
  // Runs the request and returns its status; complete() is not called.
  Status run(Request& request);

  Status add_process_set(const std::vector<int>& ranks, int* id);
  Status remove_process_set(int id);

  // Of this rank, opened with the first collective there.
  Gpu& gpu() { return *world_.gpu; }
  // Waits for a collective that was enqueued, or for all of them.
  Status wait_on_gpu(const OnGpu& enqueued);
  Status synchronize_gpu();

  // Whether a process set of this rank has broken, or a channel of its messages.
  bool has_failed();

  // The weights of ranks in averages, and what they tell each other beside gradients.
  Shares& shares() { return shares_; }

  // Up to here submit() runs a request itself, if the engine is idle.
  size_t inline_bytes() const { return inline_bytes_; }

  // Null if this rank is no member, or the set does not exist.
  const Communicator* process_set(int id);

 private:
  struct Area {
    int slot;  // see Communicator
    uint64_t offset;
    std::vector<int> ranks;
  };

  Status join_host();
  Status split_gpus(Communicator* part);
  Status gpu_has_failed(const char* where, const Status& why);
  void close_gpus();
  int free_slot() const;
  Status create(const std::vector<int>& ranks, int* id);
  Status discard(int id);
  Communicator* communicator(int id, Status* status);
  Status execute(Request& request);
  // The other rank of a message, in the job; `refusal` tells why there is none.
  int peer_of(const Request& request, Status* refusal);
  void finish(Request* request, const Status& status);
  void finish_in_step(Request* request, const Status& status);
  // These are called with the lock held, which is never held while a request runs.
  void look_after_held_turns(std::unique_lock<std::mutex>& lock);
  Status run_here(std::unique_lock<std::mutex>& lock, Request& request);
  void queue_those_whose_turn_it_is();
  void post(Request* request);
  void run_queue(std::unique_lock<std::mutex>& lock);
  void thread_main();
  Status stopped() const;
  Status dropped(int64_t step) const;
  std::string who() const { return "rank " + std::to_string(config_.rank) + " | "; }

  const ringar_config config_;
  const size_t inline_bytes_;  // see tuning.h
  std::atomic<bool> stopping_{false}, has_left_{false};
  World world_;
  const std::unique_ptr<Link> link_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Mail> mail_;
  const std::unique_ptr<Gpu> gpu_;
  Shares shares_;
  uint64_t next_offset_ = 0;
  int next_id_ = 0;

  std::mutex sets_mutex_;
  std::map<int, Area> areas_;
  std::map<int, std::unique_ptr<Communicator>> sets_;  // those that this rank is a member of

  // Turns that have come and wait for one that has not.
  struct HeldTurns {
    uint64_t awaited = 0;  // 0: none are held
    std::chrono::steady_clock::time_point since;
    double warn_at = 0;
  };

  std::mutex mutex_;
  std::condition_variable work_, done_;  // of the engine's thread; of callers
  Turns turns_;
  Queue queue_;
  int64_t last_failed_step_ = -1;
  std::atomic<int64_t> last_step_with_messages_{-1};
  Status last_failure_;
  HeldTurns held_;
  bool baton_taken_ = false;
  std::thread thread_;
};

}  // namespace ringar
