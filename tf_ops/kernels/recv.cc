// RingarRecv: one message. The spec tells the shapes; outputs are allocated when it has come.

#include "kernels/op.h"

namespace ringar {

const OpDefinition& recv_op() {
  static const OpDefinition op{
      "RingarRecv", {"T: type", "N: int >= 1", "spec: string"},
      {},           {"received: N * T"},
      false,        [](OpRequest& request) { return request.expect_arrays(); }};
  return op;
}

}  // namespace ringar
