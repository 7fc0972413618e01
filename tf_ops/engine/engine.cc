#include "engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>

#include "engine/traffic.h"
#include "engine/warn.h"

namespace ringar {

// A thread that waits in Engine::run for a request that is in the queue.
struct Waiter {
  Status status;
  bool finished = false;
};

namespace {

// A message between hosts takes about as long as a sleeper takes to wake, and two of them more.
int spin_microseconds(const ringar_config& config, bool between_hosts) {
  if (const char* wanted = std::getenv("RINGAR_SPIN_MICROSECONDS")) return std::atoi(wanted);
  if (config.local_size > sysconf(_SC_NPROCESSORS_ONLN)) return 0;
  return between_hosts ? 200 : 50;
}

// Networks are slower than shared memory, and the issuing thread has the backward pass to run.
constexpr size_t kInlineBytesBetweenHosts = 4096;

std::string list(const std::vector<int>& ranks) {
  std::string s = "[";
  for (size_t i = 0; i < ranks.size(); ++i) s += (i ? ", " : "") + std::to_string(ranks[i]);
  return s + "]";
}

// A collective without arrays, over all ranks, whose name carries what they must agree on.
// `refusal` tells, when all that came before has run, why this rank does not.
class Agreement : public Request {
 public:
  using Refusal = std::function<std::string()>;
  using Conclusion = std::function<Status()>;

  Agreement(Collective collective, std::string name, Refusal refusal, Conclusion conclusion)
      : Request(spec_), refusal_(std::move(refusal)), conclusion_(std::move(conclusion)) {
    spec_.collective = collective;
    spec_.name = std::move(name);
  }
  std::string rejection(int) const override { return refusal_ ? refusal_() : ""; }
  std::byte* allocate(size_t, int64_t) override { return nullptr; }
  Status conclude() override { return conclusion_ ? conclusion_() : Status(); }
  void complete(const Status&) override {}

 private:
  Spec spec_;
  const Refusal refusal_;
  const Conclusion conclusion_;
};

}  // namespace

Engine::Engine(const ringar_config& config, std::unique_ptr<Link> link)
    : config_(config),
      inline_bytes_(Topology::of(config).is_one_host()
                        ? tuning_for(static_cast<size_t>(config.size)).inline_bytes
                        : kInlineBytesBetweenHosts),
      link_(std::move(link)),
      gpu_(std::make_unique<Gpu>(config.cuda_library ? config.cuda_library : "",
                                 config.nccl_library ? config.nccl_library : "")) {
  world_.topology = Topology::of(config);
  world_.patience = {config.deadline, config.stall_warning,
                     spin_microseconds(config, !world_.topology.is_one_host()), &stopping_};
  world_.link = link_.get();
  world_.gpu = gpu_.get();
  if (config.algorithm) world_.algorithm = algorithm_named(config.algorithm);
  world_.recursive_doubling_bytes.assign(
      config.recursive_doubling_bytes,
      config.recursive_doubling_bytes + config.recursive_doubling_count);
}

Status Engine::start() {
  if (world_.algorithm == Algorithm::kCount)
    return {RINGAR_MISMATCH, who() +
                                 "expected an algorithm out of auto, ring, recursive_doubling, "
                                 "hierarchical, received \"" +
                                 config_.algorithm + "\""};
  RINGAR_RETURN_IF_ERROR(join_host());
  if (link_) {
    peers_ = std::make_unique<Peers>(*link_, world_.topology, arena_.get(), config_.generation);
    world_.peers = peers_.get();
  }
  mail_ = std::make_unique<Mail>(world_, config_.generation,
                                 [this](Request* r, const Status& s) { finish_in_step(r, s); });
  std::vector<int> all(static_cast<size_t>(config_.size));
  for (int r = 0; r < config_.size; ++r) all[static_cast<size_t>(r)] = r;
  int id = 0;
  RINGAR_RETURN_IF_ERROR(create(all, &id));
  thread_ = std::thread([this] { thread_main(); });
  pthread_setname_np(thread_.native_handle(), "ringar");
  return {};
}

Status Engine::join_host() {
  const std::vector<int> here = world_.topology.ranks_here();
  if (here.size() == 1) return {};
  arena_ = std::make_unique<Arena>(config_.arena_fd, world_.topology.arena_place(config_.rank),
                                   static_cast<int>(here.size()), here);
  world_.arena = arena_.get();
  const Status joined = arena_->join(config_.start_timeout, tuning_override());
  return joined.ok() ? joined : Status(joined.code(), who() + joined.message());
}

Engine::~Engine() {
  stop();
}

void Engine::stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_.store(true);
  work_.notify_all();
  // A caller in run_here() sees stopping_ within its next wait. Before it is out, this rank must
  // not join the next generation: what it still writes to the arena would count there.
  done_.wait(lock, [&] { return !baton_taken_; });
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  if (mail_) mail_->stop();
  close_gpus();
  if (peers_ && !has_left_.exchange(true)) peers_->left();
  if (arena_) arena_->leave();
}

int Engine::free_slot() const {
  std::set<int> taken;
  for (const auto& [id, area] : areas_) taken.insert(area.slot);
  int slot = 0;
  while (taken.count(slot)) ++slot;
  return slot;
}

// All ranks count alike, members or not, also where there is no memory. An id stands for one set
// for ever, since traced functions know their sets by it; slots are used again.
Status Engine::create(const std::vector<int>& ranks, int* id) {
  Area area;
  {
    const std::lock_guard<std::mutex> lock(sets_mutex_);
    area = {free_slot(), next_offset_, ranks};
    if (link_ && area.slot >= LinkGroup::kMostSets)
      return {RINGAR_UNSUPPORTED, who() + "expected at most " +
                                      std::to_string(LinkGroup::kMostSets) +
                                      " process sets at a time, received one more; remove those "
                                      "that are no longer used"};
    *id = next_id_++;
    next_offset_ += Communicator::arena_bytes(ranks, world_.topology);
    areas_[*id] = area;
  }
  if (std::find(ranks.begin(), ranks.end(), config_.rank) == ranks.end())
    return split_gpus(nullptr);
  auto communicator = std::make_unique<Communicator>(*id, area.slot, ranks, world_, area.offset);
  if (!communicator->has_memory())
    return {RINGAR_OUT_OF_MEMORY, who() + "cannot map the shared memory of process set " +
                                      std::to_string(*id) + " of ranks " + list(ranks)};
  RINGAR_RETURN_IF_ERROR(split_gpus(communicator.get()));
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  sets_[*id] = std::move(communicator);
  return {};
}

Status Engine::add_process_set(const std::vector<int>& ranks, int* id) {
  Agreement agreement(Collective::kAddProcessSet, list(ranks), {},
                      [&] { return create(ranks, id); });
  return run(agreement);
}

// What a broken set has left under way must not arrive in another one: it keeps its slot.
Status Engine::remove_process_set(int id) {
  const auto refusal = [&]() -> std::string {
    const Communicator* const set = link_ ? process_set(id) : nullptr;
    if (!set || !set->is_broken()) return "";
    return "expected a process set whose collectives have all come to their end, received one of "
           "which one has failed";
  };
  Agreement agreement(Collective::kRemoveProcessSet, std::to_string(id), refusal,
                      [&] { return discard(id); });
  return run(agreement);
}

Status Engine::discard(int id) {
  std::unique_ptr<Communicator> removed;  // goes when others may look for sets again
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  const auto area = areas_.find(id);
  if (id == 0 || area == areas_.end())
    return {RINGAR_MISMATCH,
            who() + "expected the id of an added process set, received " + std::to_string(id)};
  removed.swap(sets_[id]);
  sets_.erase(id);
  const size_t bytes = Communicator::arena_bytes(area->second.ranks, world_.topology);
  if (bytes > 0 && world_.topology.arena_place(config_.rank) == 0)
    arena_->discard(area->second.offset, bytes);
  areas_.erase(area);
  return {};
}

Communicator* Engine::communicator(int id, Status* status) {
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  const auto mine = sets_.find(id);
  if (mine != sets_.end()) return mine->second.get();
  const auto area = areas_.find(id);
  const std::string set = "process set " + std::to_string(id);
  *status = area == areas_.end()
                ? Status(RINGAR_MISMATCH, who() + "expected a process set that exists, received " +
                                              set + ", which was never added or is removed")
                : Status(RINGAR_MISMATCH, who() + "expected a member of " + set + " (ranks " +
                                              list(area->second.ranks) + "), received rank " +
                                              std::to_string(config_.rank) +
                                              ". Call its collectives only where "
                                              "process_set.included() is true.");
  return nullptr;
}

const Communicator* Engine::process_set(int id) {
  Status ignored;
  return communicator(id, &ignored);
}

bool Engine::has_failed() {
  if (mail_ && mail_->is_broken()) return true;
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  return std::any_of(sets_.begin(), sets_.end(),
                     [](const auto& set) { return set.second->is_broken(); });
}

Status Engine::execute(Request& request) {
  Status status;
  Communicator* set = communicator(request.spec.process_set, &status);
  if (!set) return status;
  const bool shared = request.spec.shares >= 0 && !request.gpu;
  status = shared ? shares_.run(*set, request) : set->run(request);
  if (status.ok()) status = request.conclude();
  if (status.ok()) Traffic::instance().add(request, set->rank(), set->size());
  return status;
}

int Engine::peer_of(const Request& request, Status* refusal) {
  const Communicator* const set = communicator(request.spec.process_set, refusal);
  if (!set) return -1;
  const int place = request.spec.root;
  if (place >= 0 && place < set->size() && place != set->rank())
    return set->ranks()[static_cast<size_t>(place)];
  *refusal = {RINGAR_MISMATCH, who() + std::string(name_of(request.spec.collective)) +
                                   ": expected a rank of the process set from 0 to " +
                                   std::to_string(set->size() - 1) + " other than this one, " +
                                   std::to_string(set->rank()) + ", received " +
                                   std::to_string(place)};
  return -1;
}

uint64_t Engine::draw_turn(int64_t step) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t turn = turns_.draw(step);
  queue_those_whose_turn_it_is();  // dropped turns may have let others come to the front
  if (!queue_.empty() && !baton_taken_) work_.notify_one();
  return turn;
}

void Engine::queue_those_whose_turn_it_is() {
  while (Request* next = turns_.next()) queue_.push(next);
  while (!baton_taken_ && !queue_.empty() && is_message(queue_.front()->spec.collective))
    post(queue_.pop());
}

void Engine::post(Request* request) {
  if (request->turn) last_step_with_messages_.store(request->step);
  Status refusal;
  const int peer = peer_of(*request, &refusal);
  mail_->post(request, peer, refusal);
}

void Engine::submit(Request* request) {
  request->submitted_ns = Timeline::instance().on() ? monotonic_ns() : 0;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool idle = !baton_taken_ && queue_.empty();
    if (!stopping_.load() && (request->turn || !turns_.empty())) {
      if (request->turn && !turns_.come(request)) {
        const Status status = dropped(request->step);
        lock.unlock();
        return request->complete(status);
      }
      if (!request->turn) turns_.come_without_turn(request);
      queue_those_whose_turn_it_is();
      const bool has_news = turns_.awaited() != held_.awaited;
      if (!has_news && (baton_taken_ || queue_.empty())) return;
      lock.unlock();
      return work_.notify_one();
    }
    if (is_message(request->spec.collective) && idle && !stopping_.load()) return post(request);
    // For longer ones the issuing thread has better things to do: the rest of the backward pass.
    if (stopping_.load() || (idle && request->input_bytes() <= inline_bytes_)) {
      const Status status = stopping_.load() ? stopped() : run_here(lock, *request);
      if (lock.owns_lock()) lock.unlock();
      return request->complete(status);
    }
    queue_.push(request);
    if (baton_taken_) return;  // its holder sees to what is in the queue
  }
  work_.notify_one();
}

Status Engine::run(Request& request) {
  request.submitted_ns = Timeline::instance().on() ? monotonic_ns() : 0;
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopping_.load()) return stopped();
  const bool nothing_before = queue_.empty() && turns_.empty();
  if (nothing_before && is_message(request.spec.collective)) {
    lock.unlock();
    Status refusal;
    const int peer = peer_of(request, &refusal);
    return refusal.ok() ? mail_->run(request, peer) : refusal;
  }
  if (nothing_before && !baton_taken_) return run_here(lock, request);
  Waiter waiter;
  request.waiter = &waiter;
  if (turns_.empty())
    queue_.push(&request);
  else
    turns_.come_without_turn(&request);
  queue_those_whose_turn_it_is();
  if ((!queue_.empty() && !baton_taken_) || turns_.awaited() != held_.awaited) work_.notify_one();
  done_.wait(lock, [&] { return waiter.finished; });
  request.waiter = nullptr;
  return waiter.status;
}

// Runs a request on the caller's thread. The baton is given back before the request is completed:
// what completion sets off may want it at once.
Status Engine::run_here(std::unique_lock<std::mutex>& lock, Request& request) {
  baton_taken_ = true;
  lock.unlock();
  const Status status = execute(request);
  lock.lock();
  baton_taken_ = false;
  if (!queue_.empty()) work_.notify_one();
  if (stopping_.load()) done_.notify_all();
  lock.unlock();
  return status;
}

void Engine::run_queue(std::unique_lock<std::mutex>& lock) {
  baton_taken_ = true;
  while (!queue_.empty() && !stopping_.load()) {
    Request* request = queue_.pop();
    if (is_message(request->spec.collective)) {
      post(request);
      continue;
    }
    lock.unlock();
    finish_in_step(request, execute(*request));
    lock.lock();
  }
  baton_taken_ = false;
  if (stopping_.load()) done_.notify_all();
}

void Engine::finish_in_step(Request* request, const Status& status) {
  const int64_t step = request->turn ? request->step : -1;
  const bool message = is_message(request->spec.collective);
  finish(request, status);
  if (status.ok() || step < 0) return;
  const bool has_more = end_step(step, status);
  // Of a collective all ranks know that it has failed, of a message two. The others are to learn
  // what became of the rest of the step, or they would go on with what belongs to another one.
  // After a collective has failed, one end of a message may have been posted, and the other one
  // dropped.
  const bool parted = message ? has_more || mail_->has(step) : last_step_with_messages_ == step;
  if (parted) mail_->give_up(status);
}

// What was announced in a step does not follow one of its collectives that has failed: TensorFlow
// ends the step, and some ranks had issued more of it than others.
bool Engine::end_step(int64_t step, const Status& status) {
  std::unique_lock<std::mutex> lock(mutex_);
  last_failed_step_ = step;
  last_failure_ = status;
  bool has_more = turns_.has(step);
  std::vector<Request*> ended = turns_.drop(step);
  Queue others;
  while (!queue_.empty()) {
    Request* const request = queue_.pop();
    if (request->step == step) {
      ended.push_back(request);
      has_more = true;
    } else
      others.push(request);
  }
  queue_ = others;
  queue_those_whose_turn_it_is();
  lock.unlock();
  for (Request* request : ended) finish(request, status);
  return has_more;
}

Status Engine::dropped(int64_t step) const {
  if (step == last_failed_step_) return last_failure_;
  return {RINGAR_MISMATCH, who() +
                               "expected the collectives of one step of TensorFlow at a time, "
                               "received one of a step that another one has overtaken: run "
                               "functions with collectives in one thread"};
}

void Engine::finish(Request* request, const Status& status) {
  if (!request->waiter) return request->complete(status);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    request->waiter->status = status;
    request->waiter->finished = true;
  }
  done_.notify_all();
}

Status Engine::stopped() const {
  return {RINGAR_NOT_INITIALIZED, who() + "ringar was shut down before this collective ran"};
}

// What is held back waits for an op of TensorFlow, which has failed or is still computing: nobody
// tells. TensorFlow itself waits for the end of what is held.
void Engine::look_after_held_turns(std::unique_lock<std::mutex>& lock) {
  const auto now = std::chrono::steady_clock::now();
  const Patience& patience = world_.patience;
  if (turns_.awaited() != held_.awaited) held_ = {turns_.awaited(), now, patience.stall_warning};
  if (!held_.awaited) return;
  const double waited = std::chrono::duration<double>(now - held_.since).count();
  const bool late = waited >= patience.deadline;
  if (!late && waited < held_.warn_at) return;
  const std::string text = who() + Signature::of(turns_.first_that_waits(), "", 0).title() +
                           ": expected the inputs of a collective before it in the program, "
                           "still waiting for them after " +
                           text_of_seconds(waited);
  held_.warn_at *= 2;
  const int64_t step = turns_.awaited_step();
  lock.unlock();
  if (late)
    end_step(step, {RINGAR_DEADLINE,
                    text + ". An op that computes them has failed, or takes longer: then "
                           "ringar.init(deadline=...) must be longer, too."});
  else
    warn(text);
  lock.lock();
}

void Engine::thread_main() {
  constexpr std::chrono::milliseconds kLook(200);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_.load()) {
    if (!queue_.empty() && !baton_taken_) {
      run_queue(lock);
      continue;
    }
    look_after_held_turns(lock);
    if (stopping_.load() || (!queue_.empty() && !baton_taken_)) continue;
    if (held_.awaited)
      work_.wait_for(lock, kLook);
    else
      work_.wait(lock);
  }
  for (Request* request : turns_.drop_all()) queue_.push(request);
  while (!queue_.empty()) {
    Request* request = queue_.pop();
    lock.unlock();
    finish(request, stopped());
    lock.lock();
  }
}

}  // namespace ringar
