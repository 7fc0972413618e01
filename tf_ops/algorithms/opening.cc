// How a collective between hosts begins: everybody comes, and everybody learns whether all agree.
//
//   1. The ranks of a host meet in shared memory and compare their signatures.
//   2. In each column recursive doubling (recursive_doubling.h) tells whether all hosts do the
//   same.
//   3. Where a host has more ranks than another one, those in no column are told by shared memory.
//
// Since it is the same for all collectives, ranks that disagree come to its end, too; then they
// exchange their signatures in full, all raise the same error, and can go on. The messages have to
// travel in any case, so a small allreduce is done on the way: they carry the partial results.

#include <cstring>
#include <vector>

#include "algorithms/between_hosts.h"

namespace ringar {
namespace {

// Ranks in no column read what the first one of their host has got.
Status tell_those_in_no_column(Communicator& c, Message message, size_t bytes) {
  HostGroup& host = c.host();
  if (host.rank() == 0) std::memcpy(host.outbox(0), message.memory(), bytes);
  RINGAR_RETURN_IF_ERROR(host.exchange());
  if (!c.column()) std::memcpy(message.memory(), host.outbox(0), bytes);
  host.finish_step();
  return {};
}

Status full_disagreement(Communicator& c) {
  LinkGroup& everybody = c.everybody();
  std::vector<Signature> by_rank(static_cast<size_t>(c.size()));
  const auto place_for = [&](int place) {
    return &by_rank[static_cast<size_t>(c.set_rank(place))];
  };
  Signature& mine = *place_for(everybody.rank());
  mine = c.current().signature;
  const size_t bytes = sizeof(Signature);
  std::byte* const out = c.buffers().at(0, bytes);
  std::byte* const in = c.buffers().at(1, bytes * by_rank.size());
  std::memcpy(out, &mine, bytes);
  const auto incoming = [&](int place) { return in + bytes * static_cast<size_t>(place); };
  RINGAR_RETURN_IF_ERROR(exchange_with_all(everybody, bytes, [&](int) { return out; }, incoming));
  for (int place = 0; place < everybody.size(); ++place)
    if (place != everybody.rank()) std::memcpy(place_for(place), incoming(place), bytes);
  return disagreement(by_rank, c.ranks(), c.current().set_id);
}

}  // namespace

Status open_between_hosts(Communicator& c, OpeningWork* work, std::byte** result,
                          LinkGroup::Haste haste) {
  HostGroup& host = c.host();
  const bool shared = host.size() > 1;
  Message mine(c.buffers().at(0, Message::kMaxBytes)),
      theirs(c.buffers().at(1, Message::kMaxBytes));
  if (work && shared) c.current().timed(Stretch::kCopy, [&] { work->publish(host); });
  bool agree = false;
  RINGAR_RETURN_IF_ERROR(host.meet(&agree));
  mine.verdict() = {c.current().signature.digest(), !agree};
  if (work && agree && c.column())
    c.current().timed(Stretch::kReduce, [&] { work->reduce_host(host, mine.partial()); });
  if (shared) host.finish_step();

  if (c.column())
    RINGAR_RETURN_IF_ERROR(RecursiveDoubling(*c.column(), work, mine, theirs, haste).run());
  if (host.size() > c.columns())
    RINGAR_RETURN_IF_ERROR(
        tell_those_in_no_column(c, mine, sizeof(Verdict) + (work ? work->bytes() : 0)));
  if (mine.verdict().disagree) return full_disagreement(c);
  if (result) *result = mine.partial();
  return {};
}

}  // namespace ringar
