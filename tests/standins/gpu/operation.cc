// How operations begin and end, and what ranks have to agree on.

#include "operation.h"

#include <cstring>

#include "memory.h"
#include "standin.h"

namespace standin {

namespace nccl = ringar::nccl;

namespace {

const char* const kKinds[] = {"ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclAllGather",
                              "ncclBroadcast", "ncclSend",   "ncclRecv",          "ncclCommSplit"};
const char* const kOps[] = {"sum", "prod", "max", "min", "avg"};

bool has_reduction(Kind kind) {
  return kind <= Kind::kReduceScatter;
}

const char* call_of(Kind kind) {
  return kKinds[static_cast<int>(kind)];
}

std::string describe(const Header& header) {
  std::string description = call_of(header.kind);
  if (header.kind != Kind::kSplit)
    description +=
        text(" of %llu %s", static_cast<unsigned long long>(header.count), name_of(header.type));
  if (has_reduction(header.kind)) description += text(", %s", kOps[header.reduction.op]);
  if (header.reduction.has_factor) {
    description += " with factor 0x";
    for (size_t i = size_of(header.type); i-- > 0;)
      description += text("%02x", header.reduction.factor[i]);
  }
  if (header.kind == Kind::kSend || header.kind == Kind::kRecv) return description;
  if (header.peer >= 0) description += text(", root %d", header.peer);
  return description + text(", operation %llu, call %llu of %llu",
                            static_cast<unsigned long long>(header.number),
                            static_cast<unsigned long long>(header.index + 1),
                            static_cast<unsigned long long>(header.calls));
}

// A sender's header is compared with the one that its receiver expects.
std::string disagreement(const Header& header, int rank, const Header& other, int other_rank) {
  const std::string call = describe(header), other_call = describe(other);
  if (call == other_call) return "";
  return text("ranks disagree: rank %d calls %s; rank %d calls %s", rank, call.c_str(), other_rank,
              other_call.c_str());
}

bool overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

bool exchange_headers(Communicator& communicator, const Header& header, std::vector<Header>* all) {
  all->assign(static_cast<size_t>(communicator.ranks), header);
  Exchange exchange(communicator);
  for (int peer = 0; peer < communicator.ranks; ++peer) {
    if (peer == communicator.rank) continue;
    Header* const other = &(*all)[static_cast<size_t>(peer)];
    exchange.send(peer, &header, sizeof header);
    exchange.receive(peer, other, sizeof *other, [&header, other, &communicator, peer] {
      return disagreement(header, communicator.rank, *other, peer);
    });
  }
  return exchange.run();
}

void Operation::run() {
  Communicator& owner = *communicator;
  ++owner.running;
  const bool has_begun = owner.begin(number);
  if (!has_begun && !owner.is_stopped()) {
    misuse("communicator", "operations run in another order than that of their calls");
    owner.fail(nccl::kInvalidUsage, "operations run in another order than that of their calls");
  }
  if (never_ends) owner.fail(nccl::kRemoteError, "this operation was to fail later");
  if (!has_begun || owner.is_stopped() || !perform()) {
    owner.wait_for_abort();
    fill_outputs();
  }
  if (has_begun) owner.end();
  --owner.pending;
  --owner.running;
}

bool Operation::perform() {
  Header header = {};
  for (const Call& call : calls) header.calls += call.kind < Kind::kSend;
  // Messages concern two ranks: not all have as many of them.
  if (header.calls > 0) header.number = communicator->collectives++;
  for (const Call& call : calls) {
    if (!check(call)) return false;
    if (call.kind >= Kind::kSend) continue;
    header.kind = call.kind;
    header.type = call.type;
    header.peer = call.peer;
    header.reduction = call.reduction;
    header.count = call.count;
    if (!run_collective(call, header)) return false;
    ++header.index;
  }
  if (!run_messages()) return false;
  for (const Call& call : calls)
    if (!check(call)) return false;
  return true;
}

bool Operation::run_collective(const Call& call, const Header& header) {
  std::vector<Header> all;
  return exchange_headers(*communicator, header, &all) && move(call);
}

// Messages of a group: whatever their order is, all of them move at once.
bool Operation::run_messages() {
  Communicator& owner = *communicator;
  const std::string fault = copy_to_self();
  if (!fault.empty()) owner.fail_all(nccl::kInvalidUsage, fault);
  if (!fault.empty()) return false;
  Exchange exchange(owner);
  std::vector<Header> sends(calls.size()), expected(calls.size()), received(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    if (call.kind < Kind::kSend || call.peer == owner.rank) continue;
    Header& header = call.kind == Kind::kSend ? sends[i] : expected[i];
    header = {};
    header.kind = Kind::kSend;
    header.type = call.type;
    header.count = call.count;
    if (call.kind == Kind::kSend) {
      exchange.send(call.peer, &header, sizeof header);
      exchange.send(call.peer, call.in, bytes_in(call));
      continue;
    }
    exchange.receive(call.peer, &received[i], sizeof header, [&, i, peer = call.peer] {
      const std::string differ = disagreement(expected[i], owner.rank, received[i], peer);
      return differ.empty() ? "" : "a receive does not fit the send: " + differ;
    });
    exchange.receive(call.peer, call.out, bytes_out(call));
  }
  return exchange.run();
}

std::string Operation::copy_to_self() const {
  std::vector<const Call*> sends, receives;
  for (const Call& call : calls) {
    if (call.peer != communicator->rank) continue;
    if (call.kind == Kind::kSend) sends.push_back(&call);
    if (call.kind == Kind::kRecv) receives.push_back(&call);
  }
  if (sends.size() != receives.size())
    return text("rank %d sends itself %zu messages, and receives %zu", communicator->rank,
                sends.size(), receives.size());
  for (size_t i = 0; i < sends.size(); ++i) {
    if (sends[i]->count != receives[i]->count || sends[i]->type != receives[i]->type)
      return text("rank %d sends itself %zu %s, and receives %zu %s", communicator->rank,
                  sends[i]->count, name_of(sends[i]->type), receives[i]->count,
                  name_of(receives[i]->type));
    if (sends[i]->count > 0 && sends[i]->in != receives[i]->out)
      std::memcpy(receives[i]->out, sends[i]->in, bytes_in(*sends[i]));
  }
  return "";
}

bool Operation::check(const Call& call) {
  const std::string fault = wrong_ranges(call);
  if (!fault.empty())
    communicator->fail_all(nccl::kInvalidArgument, text("rank %d, %s: %s", communicator->rank,
                                                        call_of(call.kind), fault.c_str()));
  return fault.empty();
}

std::string Operation::wrong_ranges(const Call& call) const {
  const size_t in = bytes_in(call), out = bytes_out(call);
  const std::string read = memory().fault(call.in, in, communicator->device);
  if (!read.empty()) return "reads " + read;
  const std::string write = memory().fault(call.out, out, communicator->device);
  if (!write.empty()) return "writes " + write;
  // In place is where a rank's own part lies in what all ranks make or give.
  const size_t offset = static_cast<size_t>(communicator->rank) * call.count * size_of(call.type);
  const std::byte* fits = call.out;
  if (call.kind == Kind::kAllGather) fits += offset;
  if (call.kind == Kind::kReduceScatter) fits -= offset;
  if (overlap(call.in, in, call.out, out) && call.in != fits)
    return "input and output overlap, and it is not in place";
  if (call.kind != Kind::kRecv) return "";
  for (const Call& other : calls)
    if (other.kind == Kind::kSend && overlap(other.in, bytes_in(other), call.out, out) &&
        !(call.peer == communicator->rank && other.peer == call.peer))
      return "a receive overlaps a send of the same group";
  return "";
}

size_t Operation::bytes_in(const Call& call) const {
  const size_t bytes = call.count * size_of(call.type);
  if (call.kind == Kind::kRecv) return 0;
  if (call.kind == Kind::kBroadcast && call.peer != communicator->rank) return 0;
  return call.kind == Kind::kReduceScatter ? bytes * static_cast<size_t>(communicator->ranks)
                                           : bytes;
}

size_t Operation::bytes_out(const Call& call) const {
  const size_t bytes = call.count * size_of(call.type);
  if (call.kind == Kind::kSend) return 0;
  if (call.kind == Kind::kReduce && call.peer != communicator->rank) return 0;
  return call.kind == Kind::kAllGather ? bytes * static_cast<size_t>(communicator->ranks) : bytes;
}

void Operation::fill_outputs() const {
  for (const Call& call : calls) {
    const size_t bytes = bytes_out(call);
    if (bytes > 0 && memory().fault(call.out, bytes, communicator->device).empty())
      std::memset(call.out, 0x77, bytes);
  }
}

}  // namespace standin
