// The collectives of a rank that is alone.

#include <cstring>

#include "engine/reduce.h"
#include "engine/ways_to_run.h"

namespace ringar {

Status run_alone(Request& request) {
  const Spec& spec = request.spec;
  request.received.clear();
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    Tensor& tensor = request.tensors[i];
    const size_t elements = static_cast<size_t>(tensor.shape.elements());
    request.received.push_back(tensor.shape.rows());
    // An empty output that exists may have no memory: it must not be asked for again.
    if (tensor.output == nullptr && rows_may_differ(spec.collective))
      tensor.output = request.allocate(i, tensor.shape.rows());
    if (tensor.output == nullptr && elements > 0)
      return {RINGAR_OUT_OF_MEMORY, "expected memory for an output, received none"};
    if (reduces(spec.collective) && (spec.prescale != 1.0 || spec.postscale != 1.0))
      reduce({spec.dtype, spec.op, spec.prescale, spec.postscale}, &tensor.input, 1, tensor.output,
             elements);
    else if (elements > 0 && tensor.output != tensor.input)
      std::memcpy(tensor.output, tensor.input, elements * request.element_size());
  }
  return {};
}

}  // namespace ringar
