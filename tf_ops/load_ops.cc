// libringar_tensorflow.so, which brings the ops of libringar.so to TensorFlow.
//
// tf.load_op_library returns the ops that are registered while it opens a library. libringar.so
// cannot be that library: a job opens it at its start, and may import TensorFlow later, or never.

#include "include/ringar.h"

namespace {

__attribute__((constructor)) void register_ops() {
  ringar_register_ops();
}

}  // namespace
