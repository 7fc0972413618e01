// RingarBroadcast: any number of tensors of one dtype, in place where TensorFlow lets go of them.

#include "kernels/op.h"

namespace ringar {
namespace {

bool prepare(OpRequest& request) {
  for (int i = 0; i < request.inputs(); ++i)
    if (!request.forward_input(i)) return false;
  return true;
}

}  // namespace

const OpDefinition& broadcast_op() {
  static const OpDefinition op{"RingarBroadcast",
                               {"T: type", "N: int >= 1", "spec: string"},
                               {"tensors: N * T"},
                               {"received: N * T"},
                               true,
                               prepare};
  return op;
}

}  // namespace ringar
