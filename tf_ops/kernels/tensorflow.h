// TensorFlow's functions, found in the process that has loaded it, and owners for what they return.

#pragma once

#include <memory>
#include <string>

#include "engine/status.h"
#include "kernels/tf_c_api.h"

namespace ringar {

// All null without TensorFlow.
struct TensorFlow {
#define RINGAR_DECLARE(name) decltype(&::name) name = nullptr;
  RINGAR_TF_FUNCTIONS(RINGAR_DECLARE)
#undef RINGAR_DECLARE
  bool complete = false;
};
const TensorFlow& tensorflow();

// What TensorFlow's libraries export; null without it.
void* find_in_tensorflow(const char* name);

struct StatusDeleter {
  void operator()(TF_Status* s) const { tensorflow().TF_DeleteStatus(s); }
};
struct TensorDeleter {
  void operator()(TF_Tensor* t) const { tensorflow().TF_DeleteTensor(t); }
};
using TfStatus = std::unique_ptr<TF_Status, StatusDeleter>;
using TfTensor = std::unique_ptr<TF_Tensor, TensorDeleter>;

inline TfStatus new_status() {
  return TfStatus(tensorflow().TF_NewStatus());
}
inline bool is_ok(const TfStatus& status) {
  return tensorflow().TF_GetCode(status.get()) == TF_OK;
}

// Stops the program if TensorFlow has refused what we register: that is our mistake.
void expect_accepted(const TfStatus& status);
void add_kernel(const std::string& op, TF_KernelBuilder* builder);
// Of ops whose outputs' shapes Python tells.
void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status);

// The value of an op's attribute.
bool read_text(TF_OpKernelConstruction* construction, const char* attribute, std::string* text,
               const TfStatus& status);

}  // namespace ringar
