#include "kernels/op_request.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/copy.h"
#include "engine/engine_instance.h"
#include "kernels/done.h"

namespace ringar {
namespace {

size_t element_count(const std::vector<int64_t>& dims) {
  return static_cast<size_t>(
      std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<int64_t>()));
}

}  // namespace

OpRequests::OpRequests(const Spec& spec) : spec_(spec) {}
OpRequests::~OpRequests() = default;

OpRequest* OpRequests::take(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  std::unique_ptr<OpRequest> request;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      request = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!request) request = std::make_unique<OpRequest>(spec_, *this);
  request->begin(context, done);
  return request.release();
}

void OpRequests::give_back(OpRequest* request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.emplace_back(request);
}

OpRequest::OpRequest(const Spec& spec, OpRequests& home)
    : Request(spec), home_(home), tf_status_(new_status()) {}

void OpRequest::begin(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  context_ = context;
  if (done) done_ = take_done(done);
  has_ticket_ = done != nullptr;
  ticket = 0;
  step = tensorflow().TF_StepId(context);
  tensors.clear();
  splits.clear();
  received.clear();
  received_output = -1;
  failure_ = {};
  tensorflow().TF_SetStatus(tf_status_.get(), TF_OK, "");
}

bool OpRequest::succeeded() {
  if (is_ok(tf_status_)) return true;
  failure_ = {static_cast<ringar_code>(tensorflow().TF_GetCode(tf_status_.get())),
              tensorflow().TF_Message(tf_status_.get())};
  return false;
}

TfTensor OpRequest::get_input(int index) {
  TF_Tensor* tensor = nullptr;
  tensorflow().TF_GetInput(context_, index, &tensor, tf_status_.get());
  return TfTensor(succeeded() ? tensor : nullptr);
}

const std::vector<int64_t>& OpRequest::dims_of(const TF_Tensor* tensor) {
  dims_.clear();
  for (int i = 0; i < tensorflow().TF_NumDims(tensor); ++i)
    dims_.push_back(tensorflow().TF_Dim(tensor, i));
  return dims_;
}

bool OpRequest::read_input(int index) {
  TfTensor tensor = get_input(index);
  if (!tensor) return false;
  Tensor& t = tensors.emplace_back();
  t.input = static_cast<const std::byte*>(tensorflow().TF_TensorData(tensor.get()));
  t.shape = Shape(tensorflow().TF_NumDims(tensor.get()),
                  [&](int i) { return tensorflow().TF_Dim(tensor.get(), i); });
  RINGAR_CHECK(tensorflow().TF_TensorByteSize(tensor.get()) ==
               static_cast<size_t>(t.shape.elements()) * element_size());
  inputs_.push_back(std::move(tensor));
  return true;
}

bool OpRequest::forward_inputs() {
  const auto running = engine();
  const auto pool = running ? running->outputs() : nullptr;
  may_publish_ = has_ticket_ && pool && spec.collective == Collective::kAllreduce;
  published_ = may_publish_ && placement_.copies() && publish_inputs(*pool);
  prepared_ = std::chrono::steady_clock::now();
  if (published_) return succeeded();
  for (int i = 0; i < inputs(); ++i)
    if (!forward_input(i)) return false;
  return true;
}

// An output in memory that the other ranks can write to, until TensorFlow gives it back.
TfTensor OpRequest::output_in(const std::shared_ptr<OutputPool::Memory>& memory, size_t offset,
                              int index, const std::vector<int64_t>& dims) {
  using Holder = std::shared_ptr<OutputPool::Memory>;
  const auto free = [](void*, size_t, void* holder) { delete static_cast<Holder*>(holder); };
  const auto& tf = tensorflow();
  TfTensor output(tf.TF_NewTensor(tf.TF_ExpectedOutputDataType(context_, index), dims.data(),
                                  static_cast<int>(dims.size()), memory->data() + offset,
                                  element_count(dims) * element_size(), free, new Holder(memory)));
  tf.TF_SetOutput(context_, index, output.get(), tf_status_.get());
  return output;
}

// Copies the inputs to outputs that the other ranks can read and write, where the collective works
// in place. The calling thread has just made them, so they are in its cache. False if there is no
// such memory.
bool OpRequest::publish_inputs(OutputPool& pool) {
  const auto room_of = [](const TF_Tensor* tensor) {
    constexpr size_t kAlignment = 64;  // what TensorFlow expects of memory
    return (tensorflow().TF_TensorByteSize(tensor) + kAlignment - 1) / kAlignment * kAlignment;
  };
  size_t bytes = 0;
  for (int i = 0; i < inputs(); ++i) {
    const TfTensor input = get_input(i);
    if (!input) return false;
    bytes += room_of(input.get());
  }
  const std::shared_ptr<OutputPool::Memory> memory = pool.take(bytes);
  if (!memory) return false;
  size_t offset = 0;
  for (int i = 0; i < inputs() && read_input(i) && succeeded(); ++i) {
    const TF_Tensor* const input = inputs_.back().get();
    outputs_.push_back(output_in(memory, offset, i, dims_of(input)));
    Tensor& tensor = tensors.back();
    tensor.output = memory->data() + offset;
    copy_to_shared(tensor.output, tensor.input, tensorflow().TF_TensorByteSize(input));
    tensor.input = tensor.output;
    offset += room_of(input);
  }
  inputs_.clear();
  return true;
}

// An output of a long allreduce in memory that the other ranks can write to, or null. TensorFlow
// tells only by doing so whether it lends an input's buffer, and an output cannot be set twice: it
// gets our memory where it has not lent the buffer the time before.
TfTensor OpRequest::output_in_pool(int index, const std::vector<int64_t>& dims) {
  const size_t bytes = element_count(dims) * element_size();
  if (spec.collective != Collective::kAllreduce || bytes < OutputPool::kLeastBytes ||
      !refusals_[static_cast<size_t>(index)])
    return nullptr;
  const auto running = engine();
  const auto pool = running ? running->outputs() : nullptr;
  const std::shared_ptr<OutputPool::Memory> memory = pool ? pool->take(bytes) : nullptr;
  return memory ? output_in(memory, 0, index, dims) : nullptr;
}

// The output comes first: TensorFlow lends an input's buffer only while nobody holds the input.
bool OpRequest::forward_input(int index) {
  TfTensor input = get_input(index);
  if (!input) return false;
  const std::vector<int64_t>& dims = dims_of(input.get());
  input.reset();
  refusals_.resize(static_cast<size_t>(inputs()));
  TfTensor output = output_in_pool(index, dims);
  if (!output) {
    int forwarded = -1;
    output.reset(tensorflow().TF_ForwardInputOrAllocateOutput(
        context_, &index, 1, index, dims.data(), static_cast<int>(dims.size()), &forwarded,
        tf_status_.get()));
    refusals_[static_cast<size_t>(index)] = forwarded < 0;
  }
  if (!succeeded() || !read_input(index)) return false;
  tensors.back().output = static_cast<std::byte*>(tensorflow().TF_TensorData(output.get()));
  outputs_.push_back(std::move(output));
  return true;
}

bool OpRequest::read_ticket() {
  const TfTensor tensor = get_input(inputs());
  if (!tensor) return false;
  ticket = *static_cast<const uint64_t*>(tensorflow().TF_TensorData(tensor.get()));
  return true;
}

bool OpRequest::read_splits(int index) {
  const TfTensor tensor = get_input(index);
  if (!tensor) return false;
  const auto* values = static_cast<const int64_t*>(tensorflow().TF_TensorData(tensor.get()));
  splits.assign(values, values + element_count(dims_of(tensor.get())));
  return true;
}

std::byte* OpRequest::allocate_as(int index, TF_DataType dtype, const std::vector<int64_t>& dims) {
  const size_t element = dtype == TF_INT64 ? sizeof(int64_t) : element_size();
  TfTensor output(tensorflow().TF_AllocateOutput(context_, index, dtype, dims.data(),
                                                 static_cast<int>(dims.size()),
                                                 element_count(dims) * element, tf_status_.get()));
  if (!succeeded()) return nullptr;
  auto* data = static_cast<std::byte*>(tensorflow().TF_TensorData(output.get()));
  outputs_.push_back(std::move(output));
  // An empty tensor may have no buffer; null means failure here.
  static std::byte nothing;
  return data ? data : &nothing;
}

bool OpRequest::expect_arrays() {
  for (const std::vector<int64_t>& dims : spec.shapes) {
    const auto dim = [&](int i) { return dims[static_cast<size_t>(i)]; };
    tensors.push_back({nullptr, nullptr, Shape(static_cast<int>(dims.size()), dim)});
  }
  return true;
}

std::byte* OpRequest::allocate(size_t index, int64_t rows) {
  if (spec.collective == Collective::kRecv) {
    const Shape& shape = tensors[index].shape;
    dims_.assign(shape.dims, shape.dims + shape.ndims);
  } else {
    dims_of(inputs_[index].get());
    if (!dims_.empty()) dims_[0] = rows;
  }
  const int output = static_cast<int>(index);
  return allocate_as(output, tensorflow().TF_ExpectedOutputDataType(context_, output), dims_);
}

bool OpRequest::allocate_output(int index, size_t rows) {
  Tensor& tensor = tensors[static_cast<size_t>(index)];
  tensor.output = allocate(static_cast<size_t>(index), static_cast<int64_t>(rows));
  return tensor.output != nullptr;
}

// An all-gather's is a row of counts per array.
bool OpRequest::write_received() {
  const auto counts = static_cast<int64_t>(received.size());
  dims_.assign(1, counts);
  if (spec.collective == Collective::kAllgather) {
    const auto arrays = static_cast<int64_t>(tensors.size());
    dims_ = {arrays, counts / arrays};
  }
  std::byte* data = allocate_as(received_output, TF_INT64, dims_);
  if (data) std::copy(received.begin(), received.end(), reinterpret_cast<int64_t*>(data));
  return data != nullptr;
}

void OpRequest::complete(const Status& status) {
  if (may_publish_) placement_.took(std::chrono::steady_clock::now() - prepared_, published_);
  Status last = !failure_.ok() ? failure_ : status;
  if (last.ok() && received_output >= 0 && !write_received()) last = failure_;
  if (!last.ok()) {
    tensorflow().TF_SetStatus(tf_status_.get(), static_cast<TF_Code>(last.code()),
                              last.message().c_str());
    tensorflow().TF_OpKernelContext_Failure(context_, tf_status_.get());
  }
  inputs_.clear();
  outputs_.clear();
  // The request goes home before the step does: done() may free what the kernel owns.
  const std::function<void()> done = std::exchange(done_, nullptr);
  home_.give_back(this);
  if (done) done();
}

}  // namespace ringar
