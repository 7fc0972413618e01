// What the TensorFlow ops have in common: definition, kernel, request.
//
// Every op takes a `spec` (engine/spec.h) and is asynchronous: its compute function hands a request
// to the engine and returns; the engine calls back when the collective is done. A kernel is told
// apart from another by one function, which prepares inputs and outputs.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "kernels/tf_c_api.h"

namespace ringar {

// TensorFlow's functions, found in the process; all null without TensorFlow.
struct TensorFlow {
#define RINGAR_DECLARE(name) decltype(&::name) name = nullptr;
  RINGAR_TF_FUNCTIONS(RINGAR_DECLARE)
#undef RINGAR_DECLARE
  bool complete = false;
};
const TensorFlow& tensorflow();

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

class OpRequest : public Request {
 public:
  OpRequest(const Spec& spec, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

  // Preparation: false if TensorFlow refused, and then the op has failed with its message.
  bool read_input(int index);     // adds a tensor with its input
  bool forward_input(int index);  // … and an output of that shape, in place if allowed
  bool read_splits(int index);    // an int64 vector
  bool allocate_output(int index, size_t rows);  // as input `index`, with other rows
  bool allocate_vector(int index, std::vector<int64_t> dims, int64_t** data);

  std::byte* allocate(size_t index, int64_t rows) override;
  void complete(const Status& status) override;
  void fail(const Status& status) { failure_ = status; }

  TF_OpKernelContext* context() const { return context_; }
  int inputs() const { return tensorflow().TF_NumInputs(context_); }

  // Filled with `received` when the collective is done, if asked for.
  int received_output = -1;

 private:
  struct Input {
    TfTensor tensor;
    std::vector<int64_t> dims;
  };
  TfTensor get_input(int index, std::vector<int64_t>* dims);
  std::byte* allocate_as(int index, TF_DataType dtype, const std::vector<int64_t>& dims);
  bool write_received();

  TF_OpKernelContext* context_;
  std::function<void()> done_;
  std::vector<Input> inputs_;
  std::vector<TfTensor> outputs_;
  Status failure_;
};

struct OpDefinition {
  const char* name;
  std::vector<const char*> attrs, inputs, outputs;
  bool outputs_shaped_as_inputs;
  bool (*prepare)(OpRequest& request);
};

// One per file of this folder; op.cc registers them when the library is opened beside TensorFlow.
const OpDefinition& allreduce_op();
const OpDefinition& reducescatter_op();
const OpDefinition& allgather_op();
const OpDefinition& broadcast_op();
const OpDefinition& alltoall_op();
const OpDefinition& barrier_op();

}  // namespace ringar
