#include "kernels/tensorflow.h"

#include <dlfcn.h>

namespace ringar {

const TensorFlow& tensorflow() {
  static const TensorFlow found = [] {
    TensorFlow tf;
    tf.complete = true;
#define RINGAR_FIND(name)                                                    \
  tf.name = reinterpret_cast<decltype(tf.name)>(dlsym(RTLD_DEFAULT, #name)); \
  tf.complete = tf.complete && tf.name != nullptr;
    RINGAR_TF_FUNCTIONS(RINGAR_FIND)
#undef RINGAR_FIND
    return tf;
  }();
  return found;
}

}  // namespace ringar
