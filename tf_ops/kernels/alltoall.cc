// RingarAlltoall: `splits` tells how many rows go to each rank; empty means evenly. The second
// output has the rows received from each rank.

#include "kernels/op.h"

namespace ringar {
namespace {

bool prepare(OpRequest& request) {
  request.received_output = 1;
  return request.read_input(0) && request.read_splits(1);
}

}  // namespace

const OpDefinition& alltoall_op() {
  static const OpDefinition op{"RingarAlltoall",
                               {"T: type", "spec: string"},
                               {"tensor: T", "splits: int64"},
                               {"received: T", "received_splits: int64"},
                               false,
                               prepare};
  return op;
}

}  // namespace ringar
