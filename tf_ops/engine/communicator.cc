#include "engine/communicator.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "engine/ways_to_run.h"

namespace ringar {
namespace {

std::vector<int> local_ranks_of(const std::vector<int>& ranks, const Topology& topology) {
  std::vector<int> local_ranks;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(local_ranks),
               [&](int rank) { return topology.is_here(rank); });
  return local_ranks;
}

}  // namespace

size_t Communicator::shared_bytes(const std::vector<int>& ranks, const Topology& topology) {
  const size_t count = local_ranks_of(ranks, topology).size();
  return count == 0 ? 0 : IntraNodeCommunicator::shared_bytes(static_cast<int>(count));
}

Status Communicator::reserve(const std::vector<int>& ranks, const World& world, uint64_t offset) {
  const std::vector<int> local_ranks = local_ranks_of(ranks, world.topology);
  const int size = static_cast<int>(local_ranks.size()),
            place = place_in(local_ranks, world.topology.rank);
  return size < 2 || place == size
             ? Status()
             : world.segment->reserve(IntraNodeCommunicator::part(size, place, offset), size);
}

Communicator::Communicator(int id, int slot, std::vector<int> ranks, const World& world,
                           uint64_t offset)
    : id_(id),
      ranks_(std::move(ranks)),
      rank_(place_in(ranks_, world.topology.rank)),
      world_(world),
      op_state_{world.topology.rank, id, slot, ranks_, world.peers} {
  group(offset);
  if (world_.peers) world_.peers->add_neighbors(ranks_);
}

Communicator::~Communicator() {
  close_gpus();
  // The link may still read and write what a failed collective has left behind.
  if (is_broken()) buffers_.leak_on_exit();
}

void Communicator::group(uint64_t offset) {
  const Topology& topology = world_.topology;
  std::map<int, std::vector<int>> by_host;  // the set's ranks
  for (int r = 0; r < size(); ++r)
    by_host[topology.host_of(ranks_[static_cast<size_t>(r)])].push_back(r);
  hosts_ = static_cast<int>(by_host.size());
  places_.resize(ranks_.size());
  size_t rails = ranks_.size();
  handshake_bytes_ = kMaxPartialBytes;
  std::vector<int> in_order;  // ranks of the job
  for (const auto& [host, members] : by_host) {
    rails = std::min(rails, members.size());
    if (members.size() > 1)
      handshake_bytes_ =
          std::min(handshake_bytes_, IntraNodeCommunicator::send_buffer_bytes(members.size()) -
                                         sizeof(ConsistencyCheck));
    for (int r : members) {
      places_[static_cast<size_t>(r)] = static_cast<int>(order_.size());
      order_.push_back(r);
      in_order.push_back(ranks_[static_cast<size_t>(r)]);
    }
  }
  rails_ = static_cast<int>(rails);

  const std::vector<int>& local_ranks = by_host[topology.host_of(topology.rank)];
  const int place = place_in(local_ranks, rank_);
  std::vector<IntraNodeCommunicator::Member> members;
  for (int r : local_ranks) {
    const int job_rank = ranks_[static_cast<size_t>(r)];
    members.push_back({job_rank, topology.segment_place(job_rank)});
  }
  host_ = std::make_unique<IntraNodeCommunicator>(id_, std::move(members), place, world_.segment,
                                                  offset, world_.timeouts, op_state_);
  host_->store_past_caches_from(world_.past_caches_bytes);
  group_gpus(local_ranks, place);
  if (!world_.link) return;
  everybody_.emplace(in_order, place_in(in_order, topology.rank), world_, op_state_);
  if (place >= rails_) return;
  std::vector<int> rail;
  for (const auto& [host, of_host] : by_host)
    rail.push_back(ranks_[static_cast<size_t>(of_host[static_cast<size_t>(place)])]);
  rail_.emplace(rail, place_in(rail, topology.rank), world_, op_state_);
}

void Communicator::group_gpus(const std::vector<int>& local_ranks, int place) {
  if (!world_.gpu) return;
  const auto broken = [this](const Status& why) { break_for_good(why); };
  gpus_ = std::make_shared<GpuCommunicator>(ranks_, rank_, world_, op_state_, broken);
  first_here_ = local_ranks.front();
  std::vector<int> job_ranks;
  for (int r : local_ranks) job_ranks.push_back(ranks_[static_cast<size_t>(r)]);
  gpus_here_ = std::make_shared<GpuCommunicator>(job_ranks, place, world_, op_state_, broken);
}

void Communicator::close_gpus() {
  if (!gpus_ || !(gpus_->is_open() || gpus_here_->is_open())) return;
  const CurrentContext current(world_.gpu->driver(), world_.gpu->context());
  (void)world_.gpu->watch().wait_for_all();
  gpus_here_->close(!is_broken());
  gpus_->close(!is_broken());
}

Algorithm Communicator::algorithm_for(const Spec& spec) const {
  if (spec.collective != Collective::kAllreduce) return Algorithm::kAuto;
  return spec.algorithm == Algorithm::kAuto ? world_.algorithm : spec.algorithm;
}

std::string Communicator::rejection(const Request& request) const {
  const std::string why = request.rejection(size());
  if (why.empty() && request.gpu) return rejection_on_gpu(request);
  const Algorithm algorithm = algorithm_for(request.spec);
  if (!why.empty() || world_.link || !is_flat(algorithm) || size() == 1) return why;
  return "expected a job with an MPI link for algorithm=" + std::string(name_of(algorithm)) +
         ", received one on a single host without it; leave the choice to ringar, or start the "
         "job with ringarrun --launcher mpirun";
}

std::string Communicator::rejection_on_gpu(const Request& request) const {
  const Spec& spec = request.spec;
  if (is_flat(algorithm_for(spec)))
    return "expected algorithm=\"auto\" or \"hierarchical\" for arrays on a GPU, where NCCL "
           "chooses "
           "the rest, received " +
           std::string(name_of(algorithm_for(spec)));
  if (reduces(spec.collective) && spec.op != ReduceOp::kSum &&
      (spec.prescale != 1.0 || spec.postscale != 1.0))
    return "expected op=sum with factors on a GPU, received " + std::string(name_of(spec.op));
  if (reduces(spec.collective) && is_floating(spec.dtype) &&
      !nccl_has_factor(spec.dtype, factor_of(spec)))
    return "expected factors whose product " + std::string(name_of(spec.dtype)) +
           " can hold, in which NCCL multiplies, received " + std::to_string(spec.prescale) +
           " and " + std::to_string(spec.postscale) + "; scale the arrays yourself";
  const Status usable = world_.gpu->use(request.gpu->device);
  if (!usable.ok()) return usable.message();
  const CurrentContext current(world_.gpu->driver(), world_.gpu->context());
  if (!current.status().ok()) return current.status().message();
  return world_.gpu->refuse_stream(request.gpu->stream).message();
}

Status Communicator::failure() const {
  const std::lock_guard<std::mutex> lock(broken_mutex_);
  return broken_;
}

void Communicator::break_for_good(const Status& failure) {
  {
    const std::lock_guard<std::mutex> lock(broken_mutex_);
    if (!broken_.ok()) return;
    broken_ = failure;
    is_broken_.store(true);
  }
  if (world_.segment) world_.segment->give_up(failure.message());
  if (world_.peers) world_.peers->gave_up(failure.message());
}

Status Communicator::run(Request& request) {
  if (is_broken()) return failure();
  op_state_.signature = Signature::of(request, rejection(request), sequence_);
  op_state_.signature.algorithm = algorithm_for(request.spec);
  op_state_.tracing = Timeline::instance().on();
  const int64_t begin = op_state_.tracing ? monotonic_ns() : 0;
  const bool on_gpu = request.gpu && !op_state_.signature.rejected;
  Status status = on_gpu ? run_on_gpus(*this, request) : dispatch(request);
  // What has come before the end of a connection tells more than this end. A wait that has ended
  // for that reason has added to it.
  if (status.code() == RINGAR_PEER_LOST && world_.peers) {
    Status trouble = trouble_beyond_the_host(op_state_);
    const bool is_known = status.message().find(trouble.message()) != std::string::npos;
    if (!trouble.ok() && !is_known) status = std::move(trouble);
  }
  ++sequence_;
  if (op_state_.tracing) {
    Timeline::instance().collective(request, op_state_.signature.title(), begin, op_state_.trace);
    op_state_.trace.clear();
  }
  const bool in_step = status.ok() || status.code() == RINGAR_MISMATCH;
  if (in_step && world_.peers) world_.peers->finished(op_state_.slot, id_, sequence_);
  if (status.ok()) return status;
  const Status failure(status.code(), op_state_.prefix() + status.message());
  if (!in_step) {
    break_for_good(failure);
    if (OutputPool* const pool = world_.segment ? world_.segment->outputs().get() : nullptr)
      for (const Tensor& tensor : request.tensors) pool->forfeit(tensor.output);
  }
  return failure;
}

Status Communicator::run_on_hosts(Request& request) {
  return dispatch(request);
}

Status Communicator::dispatch(Request& request) {
  if (op_state_.signature.rejected && size() == 1)
    return disagreement({op_state_.signature}, ranks_, id_);
  if (size() == 1) return run_alone(request);
  if (hosts_ > 1 || (world_.link && is_flat(op_state_.signature.algorithm)))
    return run_between_hosts(*this, request);
  return op_state_.signature.rejected ? host_->handshake() : run_in_shared_memory(*host_, request);
}

}  // namespace ringar
