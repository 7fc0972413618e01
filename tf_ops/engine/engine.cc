#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "engine/calibration.h"
#include "engine/limits.h"
#include "engine/timeline.h"
#include "engine/tuning.h"

namespace ringar {
namespace {

// A message between hosts takes about as long as a sleeper takes to wake, and two of them more.
// Where `ranks` share `processors`, a rank that polls takes the time of one that computes.
int spin_microseconds(int ranks, double processors, bool between_hosts) {
  if (const char* number = std::getenv("RINGAR_SPIN_MICROSECONDS")) return std::atoi(number);
  if (ranks > processors) return 0;
  return between_hosts ? 200 : 50;
}

// Networks are slower than shared memory, and the issuing thread has the backward pass to run.
constexpr size_t kInlineBytesBetweenHosts = 4096;

// The first collective of a job over several hosts without MPI. Its name has what all ranks must
// have alike.
class Meeting : public InternalRequest {
 public:
  Meeting() {
    spec_.name = "ringar.init() of ringar " RINGAR_VERSION;
    if (!tuning_overrides().empty()) spec_.name += ", RINGAR_TUNING=" + tuning_overrides();
  }
};

}  // namespace

Engine::Engine(const ringar_config& config, std::unique_ptr<Link> link)
    : config_(config),
      inline_bytes_(Topology::of(config).is_one_host()
                        ? tuning_for(static_cast<size_t>(config.size)).inline_bytes
                        : kInlineBytesBetweenHosts),
      link_(std::move(link)),
      gpu_(std::make_unique<Gpu>(config.cuda_library ? config.cuda_library : "",
                                 config.nccl_library ? config.nccl_library : "", config.deadline,
                                 [this](const Status& why) { (void)gpu_has_failed("GPU", why); })) {
  world_.topology = Topology::of(config);
  world_.timeouts = {config.deadline, config.stall_warning, 0, &stopping_};
  world_.link = link_.get();
  world_.gpu = gpu_.get();
  if (config.algorithm) world_.algorithm = algorithm_named(config.algorithm);
  world_.recursive_doubling_bytes.assign(
      config.recursive_doubling_bytes,
      config.recursive_doubling_bytes + config.recursive_doubling_count);
  bucket_bytes_ = static_cast<size_t>(config.bucket_bytes);
  if (config.halving_doubling_bytes)
    world_.halving_doubling_bytes.assign(
        config.halving_doubling_bytes,
        config.halving_doubling_bytes + config.recursive_doubling_count);
}

Status Engine::start() {
  if (world_.algorithm == Algorithm::kCount)
    return {RINGAR_MISMATCH, who() +
                                 "expected an algorithm out of auto, ring, recursive_doubling, "
                                 "halving_doubling, hierarchical, received \"" +
                                 config_.algorithm + "\""};
  RINGAR_RETURN_IF_ERROR(join_host());
  if (link_) {
    peers_ = std::make_unique<Peers>(*link_, world_.topology, segment_.get(), config_.generation);
    world_.peers = peers_.get();
  }
  point_to_point_ = std::make_unique<PointToPoint>(
      world_, config_.generation, [this](Request* r, const Status& s) { finish_in_step(r, s); });
  std::vector<int> all(static_cast<size_t>(config_.size));
  for (int r = 0; r < config_.size; ++r) all[static_cast<size_t>(r)] = r;
  int id = 0;
  std::shared_ptr<ProcessSet> set;
  const std::string why_not = reserve(all, &set);
  if (!why_not.empty()) return {RINGAR_OUT_OF_MEMORY, who() + why_not};
  RINGAR_RETURN_IF_ERROR(install(all, std::move(set), &id));
  all_ranks_ = find(id);
  RINGAR_RETURN_IF_ERROR(meet());
  RINGAR_RETURN_IF_ERROR(calibrate_between_hosts());
  return calibrate();
}

// Ranks of other hosts may come later, like those of this host, for which join_host() has waited.
// With MPI they have met in ringar/job/mpi.py, and tell each other there how this has ended.
Status Engine::meet() {
  if (!link_ || config_.link_library) return {};
  world_.timeouts.deadline = config_.start_timeout;
  Meeting meeting;
  const Status status = find(0)->communicator().run(meeting);
  world_.timeouts.deadline = config_.deadline;
  if (status.code() == RINGAR_MISMATCH)
    return {status.code(),
            status.message() + "\nRanks start with the same version of ringar and RINGAR_TUNING."};
  if (status.code() != RINGAR_DEADLINE) return status;
  return {status.code(), status.message() + " At the start it is --start-timeout of ringarrun."};
}

// Where the config says nothing of the network.
Status Engine::calibrate_between_hosts() {
  const bool is_known = config_.recursive_doubling_count > 0;
  world_.has_streams = link_ && !config_.link_library && has_streams(false);
  if (!link_ || is_known || world_.topology.is_one_host() || world_.algorithm != Algorithm::kAuto)
    return {};
  const auto use = [this](const WaysBetweenHosts& ways) {
    const auto counts = static_cast<size_t>(config_.size) + 1;
    world_.recursive_doubling_bytes.assign(counts, ways.recursive_doubling);
    world_.halving_doubling_bytes.assign(counts, ways.halving_doubling);
    world_.has_streams = has_streams(ways.has_streams);
  };
  WaysBetweenHosts ways;
  RINGAR_RETURN_IF_ERROR(ringar::calibrate_between_hosts(find(0)->communicator(), use, &ways));
  bucket_bytes_ = ways.bucket;
  if (!world_.has_streams) link_->close_streams();
  return {};
}

Status Engine::calibrate() {
  if (!asks_to_calibrate_) return {};
  Communicator& all = find(0)->communicator();
  std::optional<size_t> limit;
  RINGAR_RETURN_IF_ERROR(ringar::calibrate(all, &limit));
  has_calibrated_ = limit.has_value();
  world_.past_caches_bytes = ringar::past_caches_bytes(limit.value_or(kNever));
  all.host().store_past_caches_from(world_.past_caches_bytes);
  return {};
}

Status Engine::join_host() {
  const std::vector<int> local_ranks = world_.topology.ranks_here();
  const bool one_host = world_.topology.is_one_host();
  if (local_ranks.size() == 1) {
    world_.timeouts.spin_microseconds = spin_microseconds(1, processor_quota(), !one_host);
    return {};
  }
  segment_ = std::make_unique<SharedSegment>(
      config_.segment_fd, world_.topology.segment_place(config_.rank),
      static_cast<int>(local_ranks.size()), local_ranks, config_.news_fd);
  world_.segment = segment_.get();
  // With what the process set of all ranks needs, which comes first.
  const int size = static_cast<int>(local_ranks.size());
  const Extent extent =
      IntraNodeCommunicator::part(size, world_.topology.segment_place(config_.rank), next_offset_);
  int64_t choice = config_.past_caches_bytes;
  const Status joined =
      segment_->join(config_.start_timeout, tuning_override(), extent, &choice, one_host);
  if (joined.ok())
    world_.timeouts.spin_microseconds = spin_microseconds(
        size, std::min<double>(segment_->processors(), processor_quota()), !one_host);
  // Times in shared memory say nothing about exchanges between hosts.
  asks_to_calibrate_ =
      choice == RINGAR_CALIBRATE && one_host && !(link_ && is_flat(world_.algorithm));
  world_.past_caches_bytes =
      ringar::past_caches_bytes(choice > 0 ? static_cast<size_t>(choice) : kNever);
  return joined.ok() ? joined : Status(joined.code(), who() + joined.message());
}

Engine::~Engine() {
  stop();
  gpu_->forget_sets();
}

void Engine::stop() {
  stopping_.store(true);
  // This set makes the others, and posts messages.
  if (const auto all = find(0)) all->stop();
  for (const auto& set : sets()) set->stop();
  if (point_to_point_) point_to_point_->stop();
  stop_window_service();
  for (const auto& set : sets()) set->communicator().close_gpus();
  if (peers_ && !has_left_.exchange(true)) peers_->left();
  if (segment_) segment_->leave();
  forget_windows();
}

bool Engine::has_failed() {
  if (point_to_point_ && point_to_point_->is_broken()) return true;
  const auto all = sets();
  return std::any_of(all.begin(), all.end(),
                     [](const auto& set) { return set->communicator().is_broken(); });
}

uint64_t Engine::draw_ticket(int64_t step, int line) {
  const auto set = find(line);
  return set ? set->draw_ticket(step) : 0;
}

void Engine::let_go(uint64_t ticket, int line) {
  if (const auto set = find(line)) set->let_go(ticket);
}

void Engine::submit(Request* request) {
  request->submitted_ns = Timeline::instance().on() ? monotonic_ns() : 0;
  Status refusal;
  if (const auto set = line_for(request->spec, &refusal)) return set->submit(request);
  if (request->step != kNoStep) end_step(request->step, refusal);
  finish(request, refusal);
}

Status Engine::run(Request& request) {
  request.submitted_ns = Timeline::instance().on() ? monotonic_ns() : 0;
  Status refusal;
  const auto set = line_for(request.spec, &refusal);
  return set ? set->run(request) : refusal;
}

int Engine::peer_of(const Request& request, Status* refusal) {
  const auto set = find(request.spec.process_set, refusal);
  if (!set) return -1;
  const Communicator& members = set->communicator();
  const int place = request.spec.root;
  if (place >= 0 && place < members.size() && place != members.rank())
    return members.ranks()[static_cast<size_t>(place)];
  *refusal = {RINGAR_MISMATCH, who() + std::string(name_of(request.spec.collective)) +
                                   ": expected a rank of the process set from 0 to " +
                                   std::to_string(members.size() - 1) + " other than this one, " +
                                   std::to_string(members.rank()) + ", received " +
                                   std::to_string(place)};
  return -1;
}

void Engine::post(Request* request) {
  if (request->ticket) last_step_with_messages_.store(request->step);
  Status refusal;
  const int peer = peer_of(*request, &refusal);
  point_to_point_->post(request, peer, refusal);
}

Status Engine::run_message(Request& request) {
  Status refusal;
  const int peer = peer_of(request, &refusal);
  return refusal.ok() ? point_to_point_->run(request, peer) : refusal;
}

// The step ends first: a caller that hears of the failure may issue another collective at once,
// which must not meet the rest of the step on other ranks.
void Engine::finish_in_step(Request* request, const Status& status) {
  if (!status.ok() && request->ticket && request->step != kNoStep) end_step_by(*request, status);
  finish(request, status);
}

void Engine::end_step_by(const Request& failed, const Status& status) {
  const int64_t step = failed.step;
  const bool message = is_message(failed.spec.collective);
  note_failure(step, status);  // later requests come too late
  const bool has_more = end_step_of(step, status, message ? nullptr : &failed.spec.process_set);
  // All ranks know that a collective has failed, but only two know of a message. The others have to
  // learn that the step has ended, or they would go on with requests of another one. After a
  // collective has failed, one end of a message may have been posted, and the other one dropped.
  const bool parted =
      message ? has_more || point_to_point_->has(step) : last_step_with_messages_ == step;
  if (parted) point_to_point_->give_up(status);
}

bool Engine::end_step(int64_t step, const Status& status) {
  note_failure(step, status);
  return end_step_of(step, status, nullptr);
}

// After a failed collective the rest of its step is dropped: TensorFlow ends the step, and some
// ranks had issued more of it than others. The ranks of `failed_set` know, and drop the same
// requests. Ranks of another set may take part in a dropped request, and have to be told.
bool Engine::end_step_of(int64_t step, const Status& status, const int* failed_set) {
  bool has_more = false;
  std::vector<Request*> dropped;
  for (const auto& set : sets()) {
    if (!set->drop_step(step, &dropped)) continue;
    has_more = true;
    if (failed_set && set->id() != *failed_set) set->communicator().break_for_good(status);
  }
  for (Request* request : dropped) finish(request, status);
  return has_more;
}

void Engine::note_failure(int64_t step, const Status& status) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  last_failed_step_.store(step);
  last_failure_ = status;
}

Status Engine::failure_of(int64_t step) const {
  if (step != last_failed_step_.load()) return {};
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return last_failure_;
}

}  // namespace ringar
