// What ringar registers with TensorFlow: its ops, and the targets of custom calls in compiled code.

#include <mutex>

#include "include/ringar.h"
#include "kernels/computation.h"
#include "kernels/op.h"
#include "kernels/tensorflow.h"
#include "kernels/xla.h"

extern "C" void ringar_register_ops(void) {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!ringar::tensorflow().complete) return;
    ringar::register_collectives();
    ringar::register_computations();
    ringar::register_target_of_collectives();
    ringar::register_target_on_gpus();
    ringar::register_target_of_host_calls();
  });
}

extern "C" int ringar_has_tensorflow_ops(void) {
  return ringar::tensorflow().complete;
}
