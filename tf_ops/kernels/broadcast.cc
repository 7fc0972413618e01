// RingarBroadcast: any number of tensors of one dtype, in place where TensorFlow lets go of them.

#include "kernels/op.h"

namespace ringar {

const OpDefinition& broadcast_op() {
  static const OpDefinition op{"RingarBroadcast",
                               {"T: type", "N: int >= 1", "spec: string"},
                               {"tensors: N * T"},
                               {"received: N * T"},
                               true,
                               [](OpRequest& request) { return request.forward_inputs(); }};
  return op;
}

}  // namespace ringar
