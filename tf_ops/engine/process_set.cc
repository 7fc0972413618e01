#include "engine/process_set.h"

#include "engine/thread.h"
#include "engine/traffic.h"
#include "engine/warn.h"

namespace ringar {

// A thread that waits in ProcessSet::run for a request that is in line.
class Waiter {
 public:
  void finish(const Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    finished_ = true;
    news_.notify_one();
  }
  Status wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    news_.wait(lock, [this] { return finished_; });
    return status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  Status status_;
  bool finished_ = false;
};

void finish(Request* request, const Status& status) {
  if (request->waiter)
    request->waiter->finish(status);
  else
    request->complete(status);
}

Status no_such_set(const std::string& who, int id) {
  return {RINGAR_MISMATCH, who + "expected a process set that exists, received process set " +
                               std::to_string(id) + ", which was never added or is removed"};
}

ProcessSet::ProcessSet(int id, int slot, std::vector<int> ranks, uint64_t offset,
                       const World& world, Shares& shares, Owner& owner)
    : id_(id),
      world_(world),
      shares_(shares),
      owner_(owner),
      communicator_(id, slot, std::move(ranks), world, offset) {}

ProcessSet::~ProcessSet() {
  stop();
}

uint64_t ProcessSet::draw_ticket(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return 0;
  const uint64_t ticket = tickets_.draw(step);
  go_on();  // dropped tickets may have let others come to the front
  return ticket;
}

void ProcessSet::let_go(uint64_t ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tickets_.let_go(ticket);
  go_on();
}

bool ProcessSet::drop_step(int64_t step, std::vector<Request*>* come) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool has_more = tickets_.drop(step, come);
  go_on();
  return has_more;
}

void ProcessSet::submit(Request* request) {
  Status refusal;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    refusal = refusal_of(*request);
    if (refusal.ok() && !request->ticket) tickets_.come_without_ticket(request);
    if (refusal.ok() && request->ticket && !tickets_.come(request))
      refusal = {RINGAR_MISMATCH,
                 who() +
                     "expected the collectives of one step of TensorFlow at a time, "
                     "received one of a step that a later one has overtaken: run "
                     "functions with collectives in one thread"};
    if (refusal.ok()) return go_on();
  }
  request->complete(refusal);
}

Status ProcessSet::run(Request& request) {
  std::unique_lock<std::mutex> lock(mutex_);
  RINGAR_RETURN_IF_ERROR(refusal_of(request));
  if (tickets_.empty() && is_message(request.spec.collective)) {
    lock.unlock();
    return owner_.run_message(request);
  }
  if (tickets_.empty() && !executor_locked_) return run_here(lock, request);
  Waiter waiter;
  request.waiter = &waiter;
  tickets_.come_without_ticket(&request);
  go_on();
  lock.unlock();
  const Status status = waiter.wait();
  request.waiter = nullptr;
  return status;
}

Status ProcessSet::refusal_of(const Request& request) const {
  if (closed_) return no_such_set(who(), id_);
  if (stops()) return was_shut_down();
  return request.step == kNoStep ? Status() : owner_.failure_of(request.step);
}

Status ProcessSet::was_shut_down() const {
  return {RINGAR_NOT_INITIALIZED, who() + "ringar was shut down before this collective ran"};
}

Status ProcessSet::execute(Request& request) {
  std::unique_lock<std::mutex> order;
  if (request.gpu) order = std::unique_lock<std::mutex>(world_.gpu->order());
  request.spec.fit_to(communicator_.size());
  const bool shared = request.spec.shares >= 0 && !request.gpu;
  Status status = shared ? shares_.run(communicator_, request) : communicator_.run(request);
  if (status.ok()) status = request.conclude();
  if (status.ok()) Traffic::instance().add(request, communicator_.rank(), communicator_.size());
  return status;
}

// Ensures that a thread goes on with the requests in line.
void ProcessSet::go_on() {
  if (closed_ || stops()) idle_.notify_all();
  if (executor_locked_ || stops()) return;  // its holder goes on
  while (tickets_.next() && is_message(tickets_.next()->spec.collective)) {
    Request* const message = tickets_.next();
    tickets_.pop();
    owner_.post(message);
  }
  if (!tickets_.next() && (looks_ || !tickets_.awaited())) return;
  if (thread_.joinable()) return work_.notify_one();
  thread_ = std::thread([this] { thread_main(); });
}

// Runs a request on the caller's thread. The executor lock is given back before the request is
// completed: what completion sets off may want it at once.
Status ProcessSet::run_here(std::unique_lock<std::mutex>& lock, Request& request) {
  executor_locked_ = true;
  lock.unlock();
  const Status status = execute(request);
  lock.lock();
  executor_locked_ = false;
  go_on();
  return status;
}

void ProcessSet::run_line(std::unique_lock<std::mutex>& lock) {
  executor_locked_ = true;
  while (tickets_.next() && !stops()) {
    Request* const request = tickets_.next();
    tickets_.pop();
    if (is_message(request->spec.collective)) {
      owner_.post(request);
      continue;
    }
    lock.unlock();
    owner_.finish_in_step(request, execute(*request));
    lock.lock();
  }
  executor_locked_ = false;
  go_on();
}

// Held requests wait for an op of TensorFlow, which has failed or is still computing: nobody tells
// which. TensorFlow itself waits for the end of held requests.
void ProcessSet::look_after_held_tickets(std::unique_lock<std::mutex>& lock) {
  const Timeouts& timeouts = world_.timeouts;
  if (tickets_.awaited() != held_tickets_.awaited)
    held_tickets_ = {tickets_.awaited(), {}, timeouts.stall_warning};
  if (!held_tickets_.awaited) return;
  const double waited = held_tickets_.stopwatch.seconds();
  const bool is_late = waited >= timeouts.deadline;
  if (!is_late && waited < held_tickets_.warn_at) return;
  const Request& waits = tickets_.first_that_waits();
  std::string text = who() + Signature::of(waits, "", 0).title() +
                     ": expected the inputs of an earlier collective of the program, still "
                     "waiting for them after " +
                     text_of_seconds(waited);
  if (waits.waiter)
    text +=
        ". If the call blocks a thread of TensorFlow, as in a numpy_function, no other may be left "
        "to compute them: raise ringar.init(inter_op_threads=...)";
  held_tickets_.warn_at *= 2;
  const int64_t step = tickets_.awaited_step();
  lock.unlock();
  if (is_late)
    owner_.end_step(step, {RINGAR_DEADLINE,
                           text + ". An op that computes them has failed, or takes longer: then "
                                  "raise ringar.init(deadline=...)."});
  else
    warn(text);
  lock.lock();
}

void ProcessSet::thread_main() {
  begin_thread("ringar");
  constexpr std::chrono::milliseconds kLook(200);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stops()) {
    if (tickets_.next() && !executor_locked_) run_line(lock);
    look_after_held_tickets(lock);
    if (stops() || (tickets_.next() && !executor_locked_)) continue;
    looks_ = tickets_.awaited() != 0;
    if (looks_)
      work_.wait_for(lock, kLook);
    else
      work_.wait(lock);
    looks_ = false;
  }
}

void ProcessSet::close() {
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  tickets_.drop_absent();  // they would come too late
  go_on();
  idle_.wait(lock, [&] { return !executor_locked_ && tickets_.empty(); });
}

void ProcessSet::reopen() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = false;
}

// A caller in run_here() sees that the rank shuts down within its next wait. Before it is out, this
// rank must not join the next generation: what it still writes to the shared segment would count
// there.
void ProcessSet::stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  is_stopped_ = true;
  work_.notify_all();
  idle_.wait(lock, [&] { return !executor_locked_; });
  const std::vector<Request*> requests = tickets_.drop_all();
  idle_.notify_all();
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  for (Request* request : requests) finish(request, was_shut_down());
}

}  // namespace ringar
