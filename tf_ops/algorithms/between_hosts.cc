#include "algorithms/between_hosts.h"

namespace ringar {

Status run_between_hosts(Communicator& c, Request& request) {
  // A rejected request takes part in the handshake alone, which tells the others.
  if (c.op_state().signature.rejected) return handshake_between_hosts(c);
  switch (request.spec.collective) {
    case Collective::kAllreduce:
      return allreduce_between_hosts(c, request);
    case Collective::kReducescatter:
      return reducescatter_between_hosts(c, request);
    case Collective::kAllgather:
    case Collective::kOpenWindow:
      return allgather_between_hosts(c, request);
    case Collective::kBroadcast:
      return broadcast_between_hosts(c, request);
    case Collective::kAlltoall:
      return alltoall_between_hosts(c, request);
    case Collective::kBarrier:
    case Collective::kAddProcessSet:
    case Collective::kRemoveProcessSet:
    case Collective::kCloseWindow:
      return handshake_between_hosts(c);
    case Collective::kSend:
    case Collective::kRecv:
    case Collective::kCount:
      break;
  }
  RINGAR_CHECK(!"a collective without an algorithm");
  return {};
}

}  // namespace ringar
