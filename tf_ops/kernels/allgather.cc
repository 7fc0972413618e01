// RingarAllgather: outputs are allocated in the middle of the collective, when every rank's row
// counts are known. They are also an output: [N, ranks].

#include "kernels/op.h"

namespace ringar {
namespace {

bool prepare(OpRequest& request) {
  for (int i = 0; i < request.inputs(); ++i)
    if (!request.read_input(i)) return false;
  request.received_output = request.inputs();
  return true;
}

}  // namespace

const OpDefinition& allgather_op() {
  static const OpDefinition op{"RingarAllgather",
                               {"T: type", "N: int >= 1", "spec: string"},
                               {"tensors: N * T"},
                               {"gathered: N * T", "rows: int64"},
                               false,
                               prepare};
  return op;
}

}  // namespace ringar
