// RingarAllreduce: any number of tensors of one dtype, in place where TensorFlow lets go of them.

#include "kernels/op.h"

namespace ringar {
namespace {

bool prepare(OpRequest& request) {
  for (int i = 0; i < request.inputs(); ++i)
    if (!request.forward_input(i)) return false;
  return true;
}

}  // namespace

const OpDefinition& allreduce_op() {
  static const OpDefinition op{"RingarAllreduce",
                               {"T: type", "N: int >= 1", "spec: string"},
                               {"tensors: N * T"},
                               {"reduced: N * T"},
                               true,
                               prepare};
  return op;
}

}  // namespace ringar
