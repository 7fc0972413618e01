// Arrays in the memory of GPUs. NCCL moves them; ringar ensures that all ranks run the same
// collective.
//
//   1. On the hosts, the ranks meet and compare signatures, in shared memory or through the link,
//      as for any collective. Where only the ranks together know how many rows come out, they
//      exchange the numbers there. A rank that disagrees, or cannot, is an error on all ranks
//      before anything has reached a GPU.
//   2. With the first collective of a process set its first rank invites the others: an id that
//      NCCL makes goes through the same exchange. A set that is added later is split off.
//   3. All arrays become one group of NCCL calls, in ringar's stream, between two events.
//
//   allreduce       ncclAllReduce for each array
//   reduce-scatter  ncclReduceScatter; uneven shares: ncclReduce for each rank's share
//   all-gather      ncclAllGather; unequal rows: ncclBroadcast of each rank's rows
//   broadcast       ncclBroadcast for each array
//   all-to-all      ncclSend and ncclRecv for each rank
//
// NCCL schedules the calls of a group together, so that a bucket of gradients needs no fusion
// buffer. Collectives without a reduction move bytes. The factors of a sum become one, which
// multiplies every element before the addition (ncclRedOpCreatePreMulSum).
//
// A rank that is alone copies, in the caller's stream.

#include "algorithms/on_gpus.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "algorithms/rows.h"

namespace ringar {
namespace {

// A part of a collective that goes through the hosts: every rank's bytes to all ranks.
class Exchange : public InternalRequest {
 public:
  Exchange(const Spec& of, const void* payload, size_t bytes) : InternalRequest(of) {
    spec_.collective = Collective::kAllgather;
    spec_.dtype = DataType::kUint8;
    tensors.push_back({static_cast<const std::byte*>(payload), nullptr, {}});
    tensors[0].shape.append(1);
    tensors[0].shape.append(static_cast<int64_t>(bytes));
  }

  std::byte* allocate(size_t, int64_t rows) override {
    all_.resize(static_cast<size_t>(rows) * row_bytes(0));
    return all_.data();
  }

  const std::byte* of(int rank) const {
    return all_.data() + static_cast<size_t>(rank) * row_bytes(0);
  }

 private:
  std::vector<std::byte> all_;
};

class HostHandshake : public InternalRequest {
 public:
  explicit HostHandshake(const Spec& of) : InternalRequest(of) {
    spec_.collective = Collective::kBarrier;
  }
};

struct Invitation {
  nccl::UniqueId id;
  char why_not[384];
  Card card;
};

// NCCL knows a GPU by its place on the bus, which the parts of a GPU (MIG) share. From 2.30 on
// ranks share a GPU where they ask for it.
bool are_too_close(const Card& a, const Card& b) {
  const bool may_share = a.nccl_version >= kSharesGpus && a.shares && b.shares;
  return !may_share && std::strcmp(a.bus, b.bus) == 0;
}

// Why NCCL would refuse these ranks, or wait for ever: an error on all ranks alike.
Status refuse_cards(const Communicator& c, const Exchange& exchange) {
  const auto card = [&](int rank) {
    return reinterpret_cast<const Invitation*>(exchange.of(rank))->card;
  };
  const auto host = [&](int rank) {
    return c.world().topology.host_of(c.ranks()[static_cast<size_t>(rank)]);
  };
  const auto name = [&](int rank) {
    return "rank " + std::to_string(c.ranks()[static_cast<size_t>(rank)]);
  };
  const int version = card(0).nccl_version;
  for (int b = 1; b < c.size(); ++b) {
    if (card(b).nccl_version != version)
      return {RINGAR_MISMATCH, "expected one version of NCCL on all ranks, received " +
                                   version_text(version) + " on " + name(0) + " and " +
                                   version_text(card(b).nccl_version) + " on " + name(b) +
                                   "; install the same on all hosts"};
    for (int a = 0; a < b; ++a)
      if (host(a) == host(b) && are_too_close(card(a), card(b)))
        return {RINGAR_MISMATCH, "expected a GPU for each rank, received GPU " +
                                     std::string(card(b).bus) + " for " + name(a) + " and " +
                                     name(b) + ", which NCCL " + version_text(version) +
                                     " refuses. " + kOneGpuEach};
  }
  return {};
}

// Appends the row counts that the others need from this rank; false if they need none.
bool rows_of(const Request& request, int ranks, std::vector<int64_t>* counts) {
  if (request.spec.collective == Collective::kAllgather) {
    for (const Tensor& tensor : request.tensors) counts->push_back(tensor.shape.rows());
  } else if (request.spec.collective == Collective::kAlltoall) {
    deal_rows(request, ranks, [&](size_t, int, int64_t rows, const std::byte*, size_t) {
      counts->push_back(rows);
    });
  }
  return !counts->empty();
}

Status exchange_rows_on_hosts(Communicator& c, Request& request) {
  std::vector<int64_t> counts;
  if (!rows_of(request, c.size(), &counts)) return handshake_on_hosts(c, request.spec);
  const size_t count = counts.size(), ranks = static_cast<size_t>(c.size());
  Exchange exchange(request.spec, counts.data(), count * sizeof(int64_t));
  if (c.size() > 1) RINGAR_RETURN_IF_ERROR(c.run_on_hosts(exchange));
  std::vector<int64_t> peer_counts(count);
  const bool to_all = request.spec.collective == Collective::kAllgather;
  request.received.resize(to_all ? count * ranks : ranks);
  for (size_t r = 0; r < ranks; ++r) {
    const auto rank = static_cast<int>(r);
    std::memcpy(peer_counts.data(),
                c.size() > 1 ? static_cast<const void*>(exchange.of(rank)) : counts.data(),
                count * sizeof(int64_t));
    if (!to_all) request.received[r] = peer_counts[static_cast<size_t>(c.rank())];
    for (size_t i = 0; to_all && i < count; ++i) request.received[i * ranks + r] = peer_counts[i];
  }
  return {};
}

// One collective's calls of NCCL.
class Calls {
 public:
  Calls(Communicator& c, Request& request, nccl::RedOp op)
      : c_(c),
        request_(request),
        nccl_(c.world().gpu->nccl()),
        comm_(c.gpus()->communicator().handle()),
        stream_(c.world().gpu->stream()),
        op_(op) {
    if (reduces(request.spec.collective)) type_ = nccl_type(request.spec.dtype);
  }

  Status make() {
    switch (request_.spec.collective) {
      case Collective::kAllreduce:
        return allreduce();
      case Collective::kReducescatter:
        return reducescatter();
      case Collective::kAllgather:
        return allgather();
      case Collective::kBroadcast:
        return broadcast();
      case Collective::kAlltoall:
        return alltoall();
      default:
        break;
    }
    RINGAR_CHECK(!"a collective that GPUs do not have");
    return {};
  }

 private:
  Status allreduce() {
    for (const Tensor& t : request_.tensors)
      if (const auto count = static_cast<size_t>(t.shape.elements()))
        RINGAR_RETURN_IF_ERROR(
            RINGAR_NCCL(nccl_, AllReduce, t.input, t.output, count, type_, op_, comm_, stream_));
    return {};
  }

  Status broadcast() {
    for (const Tensor& t : request_.tensors)
      RINGAR_RETURN_IF_ERROR(spread(t.input, t.output,
                                    static_cast<size_t>(t.shape.elements()) * element(),
                                    request_.spec.root));
    return {};
  }

  Status reducescatter() {
    for (size_t i = 0; i < request_.tensors.size(); ++i)
      RINGAR_RETURN_IF_ERROR(reducescatter(request_.tensors[i], request_.row_bytes(i) / element()));
    return {};
  }

  Status reducescatter(const Tensor& t, size_t row) {
    const auto share = [&](int r) {
      return request_.splits.empty() ? even_share(t.shape.rows(), c_.size(), r)
                                     : request_.splits[static_cast<size_t>(r)];
    };
    if (all_alike(share)) {
      const size_t count = static_cast<size_t>(share(0)) * row;
      if (count == 0) return {};
      return RINGAR_NCCL(nccl_, ReduceScatter, t.input, t.output, count, type_, op_, comm_,
                         stream_);
    }
    const std::byte* input = t.input;
    for (int r = 0; r < c_.size(); ++r) {
      const size_t count = static_cast<size_t>(share(r)) * row;
      std::byte* const output = r == c_.rank() ? t.output : nullptr;
      if (count > 0)
        RINGAR_RETURN_IF_ERROR(
            RINGAR_NCCL(nccl_, Reduce, input, output, count, type_, op_, r, comm_, stream_));
      input += count * element();
    }
    return {};
  }

  Status allgather() {
    for (size_t i = 0; i < request_.tensors.size(); ++i) {
      const Tensor& t = request_.tensors[i];
      const int64_t* const rows = &request_.received[i * static_cast<size_t>(c_.size())];
      const auto share = [&](int r) { return rows[r]; };
      const auto bytes = [&](int r) {
        return static_cast<size_t>(rows[r]) * request_.row_bytes(i);
      };
      if (all_alike(share)) {
        if (bytes(0) > 0)
          RINGAR_RETURN_IF_ERROR(RINGAR_NCCL(nccl_, AllGather, t.input, t.output, bytes(0),
                                             nccl::kInt8, comm_, stream_));
        continue;
      }
      std::byte* output = t.output;
      for (int r = 0; r < c_.size(); ++r) {
        RINGAR_RETURN_IF_ERROR(spread(r == c_.rank() ? t.input : output, output, bytes(r), r));
        output += bytes(r);
      }
    }
    return {};
  }

  Status alltoall() {
    const Tensor& t = request_.tensors[0];
    std::byte* output = t.output;
    for (int r = 0; r < c_.size(); ++r) {
      const size_t bytes =
          static_cast<size_t>(request_.received[static_cast<size_t>(r)]) * request_.row_bytes(0);
      if (bytes > 0)
        RINGAR_RETURN_IF_ERROR(
            RINGAR_NCCL(nccl_, Recv, output, bytes, nccl::kInt8, r, comm_, stream_));
      output += bytes;
    }
    Status status;
    deal_rows(request_, c_.size(),
              [&](size_t, int r, int64_t, const std::byte* input, size_t bytes) {
                if (bytes > 0 && status.ok())
                  status = RINGAR_NCCL(nccl_, Send, input, bytes, nccl::kInt8, r, comm_, stream_);
              });
    return status;
  }

  Status spread(const std::byte* input, std::byte* output, size_t bytes, int root) {
    if (bytes == 0) return {};
    return RINGAR_NCCL(nccl_, Broadcast, input, output, bytes, nccl::kInt8, root, comm_, stream_);
  }

  template <typename Share>
  bool all_alike(Share share) const {
    for (int r = 1; r < c_.size(); ++r)
      if (share(r) != share(0)) return false;
    return true;
  }

  size_t element() const { return request_.element_size(); }

  Communicator& c_;
  const Request& request_;
  const Nccl& nccl_;
  const nccl::Comm comm_;
  const nccl::Stream stream_;
  const nccl::RedOp op_;
  nccl::DataType type_ = nccl::kInt8;
};

// The outputs of this rank; allocates those whose size only the exchange has told.
Status place_outputs(Communicator& c, Request& request, std::vector<Enqueued::Range>* outputs) {
  const auto nothing = [](size_t, int, std::byte*, size_t) {};
  if (rows_may_differ(request.spec.collective))
    RINGAR_RETURN_IF_ERROR(place_rows(request, c.size(), nothing));
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const Tensor& tensor = request.tensors[i];
    int64_t rows = tensor.shape.rows();
    if (request.spec.collective == Collective::kReducescatter)
      rows = request.splits.empty() ? even_share(rows, c.size(), c.rank())
                                    : request.splits[static_cast<size_t>(c.rank())];
    if (rows_may_differ(request.spec.collective)) {
      const int64_t* const from = &request.received[i * static_cast<size_t>(c.size())];
      rows = 0;
      for (int r = 0; r < c.size(); ++r) rows += from[r];
    }
    const size_t bytes = static_cast<size_t>(rows) * request.row_bytes(i);
    if (bytes > 0 && !tensor.output) return no_memory_for(bytes);
    if (bytes > 0) outputs->push_back({tensor.output, bytes});
  }
  return {};
}

// A rank that is alone copies its inputs to its outputs. Nothing comes back to the caller's stream,
// but who synchronizes with ringar's waits for it.
Status copy_alone(Gpu& gpu, const Request& request) {
  const auto stream = static_cast<cuda::Stream>(request.gpu->stream);
  for (const Tensor& t : request.tensors) {
    const size_t bytes = static_cast<size_t>(t.shape.elements()) * request.element_size();
    if (bytes > 0 && t.output != t.input)
      RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(gpu.driver(), MemcpyDtoDAsync,
                                         reinterpret_cast<cuda::Pointer>(t.output),
                                         reinterpret_cast<cuda::Pointer>(t.input), bytes, stream));
  }
  return gpu.begin(request.gpu->stream);
}

Status enqueue(Communicator& c, Request& request, const std::shared_ptr<Enqueued>& entry) {
  Gpu& gpu = *c.world().gpu;
  GpuCommunicator& group = *c.gpus();
  RINGAR_RETURN_IF_ERROR(open_gpus(c, group, 0, request.spec));
  gpu.watch().make_room();
  std::unique_lock<std::mutex> locked;
  RINGAR_RETURN_IF_ERROR(group.lock(&locked));
  NcclCommunicator& communicator = group.communicator();
  nccl::RedOp op = nccl::kSum;
  if (reduces(request.spec.collective))
    RINGAR_RETURN_IF_ERROR(
        communicator.acquire(request.spec.op, request.spec.dtype, factor_of(request.spec), &op));
  Status status = gpu.begin(request.gpu->stream);
  if (status.ok())
    status = communicator.group([&] { return Calls(c, request, op).make(); }, group.watchdog());
  communicator.release(op);
  RINGAR_RETURN_IF_ERROR(status);
  return gpu.end(request.gpu->stream, entry);
}

}  // namespace

Status handshake_on_hosts(Communicator& c, const Spec& spec) {
  HostHandshake handshake(spec);
  return c.size() > 1 ? c.run_on_hosts(handshake) : Status();
}

Status open_gpus(Communicator& c, GpuCommunicator& group, int first, const Spec& spec) {
  if (group.is_open()) return {};
  Invitation draft{};
  draft.card = c.world().gpu->card();
  if (group.rank() == 0) {
    const Status status = RINGAR_NCCL(c.world().gpu->nccl(), GetUniqueId, &draft.id);
    const std::string why = status.ok() ? "" : c.op_state().prefix() + status.message();
    std::memcpy(draft.why_not, why.data(), fitting(why, sizeof draft.why_not - 1));
  }
  Exchange exchange(spec, &draft, sizeof draft);
  Invitation invitation = draft;
  if (c.size() > 1) {
    RINGAR_RETURN_IF_ERROR(c.run_on_hosts(exchange));
    RINGAR_RETURN_IF_ERROR(refuse_cards(c, exchange));
    std::memcpy(&invitation, exchange.of(first), sizeof invitation);
  }
  if (invitation.why_not[0] != '\0') return {RINGAR_DEVICE, invitation.why_not};
  return group.open(invitation.id);
}

Status run_on_gpus(Communicator& c, Request& request) {
  Gpu& gpu = *c.world().gpu;
  const CurrentContext current(gpu.driver(), gpu.context());
  RINGAR_RETURN_IF_ERROR(current.status());
  RINGAR_RETURN_IF_ERROR(exchange_rows_on_hosts(c, request));
  std::vector<Enqueued::Range> outputs;
  RINGAR_RETURN_IF_ERROR(place_outputs(c, request, &outputs));
  if (c.size() == 1 && factor_of(request.spec) == 1.0) return copy_alone(gpu, request);
  auto entry = std::make_shared<Enqueued>();
  entry->signature = c.op_state().signature;
  entry->outputs = std::move(outputs);
  request.gpu->enqueued = entry;
  const bool by_hosts =
      c.op_state().signature.algorithm == Algorithm::kHierarchical && c.hosts() > 1;
  entry->group = by_hosts ? c.gpus_here().get() : c.gpus().get();
  const Status enqueued =
      by_hosts ? enqueue_hierarchical(c, request, entry) : enqueue(c, request, entry);
  if (enqueued.code() == RINGAR_MISMATCH) {
    request.gpu->enqueued = nullptr;  // all ranks have refused, and can go on
  } else if (!enqueued.ok()) {
    gpu.watch().fail(*entry->group, {enqueued.code(), c.op_state().prefix() + enqueued.message()});
    // The caller may let go of arrays that NCCL still reads and writes.
    (void)gpu.watch().comes_to_rest();
  }
  return enqueued;
}

}  // namespace ringar
