// RingarSend: any number of tensors of one dtype, in one message. It has no outputs.

#include "kernels/op.h"

namespace ringar {
namespace {

bool prepare(OpRequest& request) {
  for (int i = 0; i < request.inputs(); ++i)
    if (!request.read_input(i)) return false;
  return true;
}

}  // namespace

const OpDefinition& send_op() {
  static const OpDefinition op{
      "RingarSend", {"T: type", "N: int >= 1", "spec: string"}, {"tensors: N * T"}, {}, false,
      prepare};
  return op;
}

}  // namespace ringar
