// The handshake that begins a collective between hosts: all ranks come, and learn whether they
// agree.
//
//   1. The ranks of a host meet in shared memory and compare their signatures.
//   2. In each rail recursive doubling (recursive_doubling.h) tells whether all hosts do the same.
//   3. Where a host has more ranks than another one, those in no rail are told by shared memory.
//
// Since it is the same for all collectives, ranks that disagree come to its end, too; then they
// exchange their signatures in full (bruck.h), all raise the same error, and can go on. The
// messages have to travel in any case, so a small allreduce is done on the way: they carry the
// partial results.

#include <cstring>
#include <vector>

#include "algorithms/between_hosts.h"
#include "algorithms/bruck.h"

namespace ringar {
namespace {

// Ranks in no rail read the message that the first rank of their host has received.
Status tell_those_in_no_rail(Communicator& c, Message message, size_t bytes) {
  IntraNodeCommunicator& host = c.host();
  if (host.rank() == 0) std::memcpy(host.send_buffer(0), message.memory(), bytes);
  RINGAR_RETURN_IF_ERROR(host.exchange());
  if (!c.rail()) std::memcpy(message.memory(), host.send_buffer(0), bytes);
  host.finish_step();
  return {};
}

// For a flat algorithm among ranks of one host: a rank in another collective is not on the link.
Status handshake_on_one_host(IntraNodeCommunicator& host) {
  RINGAR_RETURN_IF_ERROR(host.handshake());
  host.finish_step();
  return {};
}

Status full_disagreement(Communicator& c) {
  InterNodeCommunicator& everybody = c.everybody();
  std::vector<Signature> by_rank(static_cast<size_t>(c.size()));
  const size_t bytes = sizeof(Signature);
  std::byte* const all = c.buffers().at(0, bytes * by_rank.size());
  const auto place_of = [&](int place) { return all + bytes * static_cast<size_t>(place); };
  std::memcpy(place_of(everybody.rank()), &c.op_state().signature, bytes);
  RINGAR_RETURN_IF_ERROR(bruck_allgather(everybody, c.buffers(), 1, all, bytes));
  for (int place = 0; place < everybody.size(); ++place)
    std::memcpy(&by_rank[static_cast<size_t>(c.set_rank(place))], place_of(place), bytes);
  return disagreement(by_rank, c.ranks(), c.op_state().set_id);
}

}  // namespace

Status handshake_between_hosts(Communicator& c, HandshakePayload* payload, std::byte** result,
                               WaitPolicy policy) {
  IntraNodeCommunicator& host = c.host();
  if (c.hosts() == 1) return handshake_on_one_host(host);
  const bool shared = host.size() > 1;
  Message message(c.buffers().at(0, Message::kMaxBytes)),
      partner_message(c.buffers().at(1, Message::kMaxBytes));
  if (payload && shared) c.op_state().timed(Span::kCopy, [&] { payload->publish(host); });
  bool agree = false;
  RINGAR_RETURN_IF_ERROR(host.check_consistency(&agree));
  message.check() = {c.op_state().signature.digest(), !agree};
  if (payload && agree && c.rail())
    c.op_state().timed(Span::kReduce, [&] { payload->reduce_host(host, message.partial()); });
  if (shared) host.finish_step();

  if (c.rail())
    RINGAR_RETURN_IF_ERROR(
        RecursiveDoubling(*c.rail(), payload, message, partner_message, policy).run());
  if (host.size() > c.rails())
    RINGAR_RETURN_IF_ERROR(tell_those_in_no_rail(
        c, message, sizeof(ConsistencyCheck) + (payload ? payload->bytes() : 0)));
  if (message.check().disagree) return full_disagreement(c);
  if (result) *result = message.partial();
  return {};
}

}  // namespace ringar
