// RingarReducescatter: `splits` tells how many rows each rank keeps; empty means evenly.

#include "engine/engine_instance.h"
#include "kernels/op.h"

namespace ringar {
namespace {

// A share that cannot be right is left to the engine, which tells all ranks.
int64_t rows_to_keep(const OpRequest& request, const Tensor& tensor) {
  const auto running = engine();
  const auto set = running ? running->process_set(request.spec.process_set) : nullptr;
  if (!set) return 0;
  if (request.splits.empty()) return even_share(tensor.shape.rows(), set->size(), set->rank());
  const auto place = static_cast<size_t>(set->rank());
  return place < request.splits.size() ? std::max<int64_t>(0, request.splits[place]) : 0;
}

bool prepare(OpRequest& request) {
  const int arrays = request.inputs() - 1;
  if (!request.read_splits(arrays)) return false;
  for (int i = 0; i < arrays; ++i) {
    if (!request.read_input(i)) return false;
    const auto rows = static_cast<size_t>(rows_to_keep(request, request.tensors.back()));
    if (!request.allocate_output(i, rows)) return false;
  }
  return true;
}

}  // namespace

const OpDefinition& reducescatter_op() {
  static const OpDefinition op{"RingarReducescatter",
                               {"T: type", "N: int >= 1", "spec: string"},
                               {"tensors: N * T", "splits: int64"},
                               {"reduced: N * T"},
                               false,
                               prepare};
  return op;
}

}  // namespace ringar
