// A process set of this rank: requests in, in the order of issue, completions out.
//
// One request runs at a time: ranks issue the same requests in the same order, so an order of our
// own could only be wrong. Whoever holds the executor lock runs requests. When it is free and
// nothing waits, a caller that must wait anyway (NumPy, a compiled TensorFlow step) runs its
// request itself: no thread to wake. Everything else is done by a thread of the set, which its
// first request of this kind starts. Process sets know nothing of each other: while one waits for a
// rank, others go on.
//
// Messages of all sets have their tickets among the requests of the set of all ranks, and are only
// passed on; see point_to_point.h.

#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/communicator.h"
#include "engine/shares.h"
#include "engine/tickets.h"

namespace ringar {

// Tells whoever waits for a request how it has ended.
void finish(Request* request, const Status& status);

Status no_such_set(const std::string& who, int id);

class ProcessSet {
 public:
  // The owner of the other sets and of the messages.
  class Owner {
   public:
    // Takes over a message whose turn it is, with the lock of the set held; runs one.
    virtual void post(Request* request) = 0;
    virtual Status run_message(Request& request) = 0;
    // Ends a request and, if it has failed, the step in which it was announced.
    virtual void finish_in_step(Request* request, const Status& status) = 0;
    virtual bool end_step(int64_t step, const Status& status) = 0;
    // Why a step is over.
    virtual Status failure_of(int64_t step) const = 0;

   protected:
    ~Owner() = default;
  };

  // See Communicator.
  ProcessSet(int id, int slot, std::vector<int> ranks, uint64_t offset, const World& world,
             Shares& shares, Owner& owner);
  ~ProcessSet();
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;

  int id() const { return id_; }
  Communicator& communicator() { return communicator_; }

  // The same as those of the engine.
  uint64_t draw_ticket(int64_t step);
  void let_go(uint64_t ticket);
  bool drop_step(int64_t step, std::vector<Request*>* come);  // see Tickets::drop
  void submit(Request* request);
  Status run(Request& request);

  // Lets no request in any longer, and returns when those before have ended.
  void close();
  void reopen();
  // Ends what waits with an error. Returns when no thread runs a collective any longer.
  void stop();

 private:
  bool stops() const { return is_stopped_ || world_.timeouts.stop->load(); }
  Status refusal_of(const Request& request) const;
  Status execute(Request& request);
  // These are called with the lock held, which is never held while a request runs.
  void go_on();
  Status run_here(std::unique_lock<std::mutex>& lock, Request& request);
  void run_line(std::unique_lock<std::mutex>& lock);
  void look_after_held_tickets(std::unique_lock<std::mutex>& lock);
  void thread_main();
  Status was_shut_down() const;
  std::string who() const { return "rank " + std::to_string(world_.topology.rank) + " | "; }

  // Requests that have come, and wait for one whose ticket is before theirs.
  struct HeldTickets {
    uint64_t awaited = 0;  // 0: none are held
    Stopwatch stopwatch;
    double warn_at = 0;
  };

  const int id_;
  const World& world_;
  Shares& shares_;
  Owner& owner_;
  Communicator communicator_;

  std::mutex mutex_;
  std::condition_variable work_, idle_;  // of the thread; of close() and stop()
  Tickets tickets_;
  HeldTickets held_tickets_;
  bool executor_locked_ = false, closed_ = false, is_stopped_ = false;
  bool looks_ = false;  // whether the thread wakes by itself, to look after held tickets
  std::thread thread_;
};

}  // namespace ringar
