// One call of a TensorFlow op, on its way through the engine.
//
// Requests belong to their kernel and are used again, so that a step allocates only what TensorFlow
// itself does for its tensors.

#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/output_pool.h"
#include "engine/request.h"
#include "kernels/placement.h"
#include "kernels/tensorflow.h"

namespace ringar {

class OpRequest;

// The requests of one kernel that are not in use. A kernel runs more than one at a time only where
// its function is called by several threads.
class OpRequests {
 public:
  explicit OpRequests(const Spec& spec);
  ~OpRequests();

  // `done` may be null, where nobody is to be called.
  OpRequest* take(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);
  void give_back(OpRequest* request);

 private:
  const Spec& spec_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<OpRequest>> idle_;
};

class OpRequest : public Request {
 public:
  OpRequest(const Spec& spec, OpRequests& home);
  void begin(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

  // Preparation: false if TensorFlow refused, and then the op has failed with its message.
  bool read_input(int index);                    // adds a tensor with its input
  bool forward_inputs();                         // all, with outputs: in place if allowed
  bool read_splits(int index);                   // an int64 vector
  bool allocate_output(int index, size_t rows);  // as input `index`, with other rows
  // As many arrays to receive as the spec has shapes; only the message tells open dimensions.
  bool expect_arrays();

  std::byte* allocate(size_t index, int64_t rows) override;
  void complete(const Status& status) override;

  // Without the ticket, which comes last where there is one.
  int inputs() const { return tensorflow().TF_NumInputs(context_) - (has_ticket_ ? 1 : 0); }
  bool read_ticket();
  // Why preparation failed.
  const Status& failure() const { return failure_; }

  // Filled with `received` when the collective is done, if asked for.
  int received_output = -1;

 private:
  TfTensor get_input(int index);
  const std::vector<int64_t>& dims_of(const TF_Tensor* tensor);
  bool forward_input(int index);
  bool publish_inputs(OutputPool& pool);
  TfTensor output_in(const std::shared_ptr<OutputPool::Memory>& memory, size_t offset, int index,
                     const std::vector<int64_t>& dims);
  TfTensor output_in_pool(int index, const std::vector<int64_t>& dims);
  std::byte* allocate_as(int index, TF_DataType dtype, const std::vector<int64_t>& dims);
  bool write_received();
  bool succeeded();  // keeps TensorFlow's message if not

  OpRequests& home_;
  TF_OpKernelContext* context_ = nullptr;
  std::function<void()> done_;
  bool has_ticket_ = false;
  std::vector<TfTensor> inputs_, outputs_;
  std::vector<int64_t> dims_;
  // By input: whether TensorFlow did not lend its buffer when it was last asked.
  std::vector<bool> refusals_;
  Placement placement_;
  std::chrono::steady_clock::time_point prepared_;
  bool may_publish_ = false, published_ = false;
  TfStatus tf_status_;
  Status failure_;
};

}  // namespace ringar
