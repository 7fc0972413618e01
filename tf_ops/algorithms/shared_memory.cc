#include "algorithms/shared_memory.h"

namespace ringar {

Status run_in_shared_memory(IntraNodeCommunicator& host, Request& request) {
  switch (request.spec.collective) {
    case Collective::kAllreduce:
      return allreduce_in_shared_memory(host, request);
    case Collective::kReducescatter:
      return reducescatter_in_shared_memory(host, request);
    case Collective::kAllgather:
    case Collective::kOpenWindow:
      return allgather_in_shared_memory(host, request);
    case Collective::kBroadcast:
      return broadcast_in_shared_memory(host, request);
    case Collective::kAlltoall:
      return alltoall_in_shared_memory(host, request);
    case Collective::kBarrier:
    case Collective::kAddProcessSet:
    case Collective::kRemoveProcessSet:
    case Collective::kCloseWindow: {
      RINGAR_RETURN_IF_ERROR(host.handshake());
      host.finish_step();
      return {};
    }
    case Collective::kSend:
    case Collective::kRecv:
    case Collective::kCount:
      break;
  }
  RINGAR_CHECK(!"a collective without an algorithm");
  return {};
}

}  // namespace ringar
