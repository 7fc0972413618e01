#include "kernels/tensorflow.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace ringar {

// Python opens TensorFlow's libraries privately, and so they stay: in the scope of all libraries
// their NCCL, and much else that they export, would take the place of functions of that name also
// where a library that is opened later calls itself. Up to TensorFlow 2.18 libtensorflow_cc.so.2
// has a part of the C API. A TensorFlow of one piece may be in the scope of all.
void* find_in_tensorflow(const char* name) {
  if (void* const function = dlsym(RTLD_DEFAULT, name)) return function;
  for (const char* file : {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"}) {
    void* const library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    if (void* const function = library ? dlsym(library, name) : nullptr) return function;
  }
  return nullptr;
}

const TensorFlow& tensorflow() {
  static const TensorFlow functions = [] {
    TensorFlow tf;
    tf.complete = true;
#define RINGAR_FIND(name)                                                   \
  tf.name = reinterpret_cast<decltype(tf.name)>(find_in_tensorflow(#name)); \
  tf.complete = tf.complete && tf.name != nullptr;
    RINGAR_TF_FUNCTIONS(RINGAR_FIND)
#undef RINGAR_FIND
    return tf;
  }();
  return functions;
}

void expect_accepted(const TfStatus& status) {
  if (is_ok(status)) return;
  std::fprintf(stderr, "ringar | TensorFlow refused an op: %s\n",
               tensorflow().TF_Message(status.get()));
  std::abort();
}

void add_kernel(const std::string& op, TF_KernelBuilder* builder) {
  const TfStatus status = new_status();
  tensorflow().TF_RegisterKernelBuilder(op.c_str(), builder, status.get());
  expect_accepted(status);
}

void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  tensorflow().TF_ShapeInferenceContextSetUnknownShape(context, status);
}

bool read_text(TF_OpKernelConstruction* construction, const char* attribute, std::string* text,
               const TfStatus& status) {
  int32_t list = 0, bytes = 0;
  tensorflow().TF_OpKernelConstruction_GetAttrSize(construction, attribute, &list, &bytes,
                                                   status.get());
  if (!is_ok(status)) return false;
  text->resize(static_cast<size_t>(bytes));
  tensorflow().TF_OpKernelConstruction_GetAttrString(construction, attribute, text->data(),
                                                     text->size(), status.get());
  return is_ok(status);
}

}  // namespace ringar
