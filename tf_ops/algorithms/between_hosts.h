// Collectives of a process set whose ranks do not all share memory. Each begins with open(), in
// which all ranks learn whether they agree; see the essays in the .cc files.

#pragma once

#include "algorithms/recursive_doubling.h"
#include "engine/communicator.h"

namespace ringar {

Status run_between_hosts(Communicator& communicator, Request& request);

Status allreduce_between_hosts(Communicator& communicator, Request& request);
Status reducescatter_between_hosts(Communicator& communicator, Request& request);
Status allgather_between_hosts(Communicator& communicator, Request& request);
Status broadcast_between_hosts(Communicator& communicator, Request& request);
Status alltoall_between_hosts(Communicator& communicator, Request& request);

// Shared memory inside each host, a ring in each column.
Status allreduce_hierarchical(Communicator& communicator, const Request& request,
                              const VirtualArray& array);

// After the opening, among the ranks of `group`.
Status ring_allreduce(Communicator& communicator, LinkGroup& group, const Spec& spec,
                      const VirtualArray& array);

// What the opening does on the way: ranks have to exchange messages in any case.
class OpeningWork : public PartialResult {
 public:
  // This rank's part to its outbox.
  virtual void publish(HostGroup& host) = 0;
  // The parts of all ranks of the host to `partial`.
  virtual void reduce_host(HostGroup& host, std::byte* partial) = 0;
};

// All ranks come, and learn whether they agree; with `work`, they go on to `*result`, which holds
// until the next collective. A rank that has computing to go on with waits patiently for the
// others.
Status open_between_hosts(Communicator& communicator, OpeningWork* work = nullptr,
                          std::byte** result = nullptr,
                          LinkGroup::Haste haste = LinkGroup::Haste::kEager);
inline Status open_for(Communicator& communicator, size_t bytes) {
  return open_between_hosts(communicator, nullptr, nullptr, LinkGroup::haste_for(bytes));
}

// Exchanges `bytes` with each other rank of the group: from outgoing(rank), to incoming(rank).
template <typename Outgoing, typename Incoming>
Status exchange_with_all(LinkGroup& group, size_t bytes, Outgoing outgoing, Incoming incoming) {
  std::vector<int> tickets(2 * static_cast<size_t>(group.size()), -1);
  for (int distance = 1; distance < group.size(); ++distance) {
    const int from = group.neighbor(-distance), to = group.neighbor(distance);
    int* const pair = &tickets[2 * static_cast<size_t>(distance)];
    RINGAR_RETURN_IF_ERROR(group.receive(from, 0, incoming(from), bytes, &pair[0]));
    RINGAR_RETURN_IF_ERROR(group.send(to, 0, outgoing(to), bytes, &pair[1]));
  }
  return group.finish(LinkGroup::Haste::kEager, tickets.data(), tickets.size());
}

}  // namespace ringar
