#include "kernels/op.h"

#include <dlfcn.h>

#include <cstring>
#include <numeric>

#include "engine/instance.h"

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

namespace {

bool is_ok(const TfStatus& status) {
  return tensorflow().TF_GetCode(status.get()) == TF_OK;
}

Status to_status(const TfStatus& status) {
  return {static_cast<ringar_code>(tensorflow().TF_GetCode(status.get())),
          tensorflow().TF_Message(status.get())};
}

size_t element_count(const std::vector<int64_t>& dims) {
  return static_cast<size_t>(
      std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<int64_t>()));
}

}  // namespace

// `done` is the address of a std::function on the caller's stack: it is copied before compute
// returns, since calling TensorFlow's pointer later would read a dead frame.
OpRequest::OpRequest(const Spec& spec, TF_OpKernelContext* context,
                     TF_AsyncOpKernelDoneCallback* done)
    : Request(spec), context_(context), done_(*reinterpret_cast<std::function<void()>*>(done)) {}

TfTensor OpRequest::get_input(int index, std::vector<int64_t>* dims) {
  const TfStatus status = new_status();
  TF_Tensor* raw = nullptr;
  tensorflow().TF_GetInput(context_, index, &raw, status.get());
  if (!is_ok(status)) {
    fail(to_status(status));
    return nullptr;
  }
  TfTensor tensor(raw);
  dims->clear();
  for (int i = 0; i < tensorflow().TF_NumDims(raw); ++i)
    dims->push_back(tensorflow().TF_Dim(raw, i));
  return tensor;
}

bool OpRequest::read_input(int index) {
  std::vector<int64_t> dims;
  TfTensor tensor = get_input(index, &dims);
  if (!tensor) return false;
  Tensor& t = tensors.emplace_back();
  t.input = static_cast<const std::byte*>(tensorflow().TF_TensorData(tensor.get()));
  t.shape =
      Shape(static_cast<int>(dims.size()), [&](int i) { return dims[static_cast<size_t>(i)]; });
  RINGAR_CHECK(tensorflow().TF_TensorByteSize(tensor.get()) ==
               static_cast<size_t>(t.shape.elements()) * element_size());
  inputs_.push_back({std::move(tensor), std::move(dims)});
  return true;
}

// The output comes first: TensorFlow lends an input's buffer only while nobody holds the input.
bool OpRequest::forward_input(int index) {
  std::vector<int64_t> dims;
  if (!get_input(index, &dims)) return false;
  const TfStatus status = new_status();
  int forwarded = -1;
  TfTensor output(tensorflow().TF_ForwardInputOrAllocateOutput(
      context_, &index, 1, index, dims.data(), static_cast<int>(dims.size()), &forwarded,
      status.get()));
  if (!is_ok(status)) {
    fail(to_status(status));
    return false;
  }
  if (!read_input(index)) return false;
  tensors.back().output = static_cast<std::byte*>(tensorflow().TF_TensorData(output.get()));
  outputs_.push_back(std::move(output));
  return true;
}

bool OpRequest::read_splits(int index) {
  std::vector<int64_t> dims;
  const TfTensor tensor = get_input(index, &dims);
  if (!tensor) return false;
  const auto* values = static_cast<const int64_t*>(tensorflow().TF_TensorData(tensor.get()));
  splits.assign(values, values + element_count(dims));
  return true;
}

std::byte* OpRequest::allocate_as(int index, TF_DataType dtype, const std::vector<int64_t>& dims) {
  const TfStatus status = new_status();
  const size_t element = dtype == TF_INT64 ? sizeof(int64_t) : element_size();
  TfTensor output(tensorflow().TF_AllocateOutput(context_, index, dtype, dims.data(),
                                                 static_cast<int>(dims.size()),
                                                 element_count(dims) * element, status.get()));
  if (!is_ok(status)) {
    fail(to_status(status));
    return nullptr;
  }
  auto* data = static_cast<std::byte*>(tensorflow().TF_TensorData(output.get()));
  outputs_.push_back(std::move(output));
  // An empty tensor may have no buffer; null means failure here.
  static std::byte nothing;
  return data ? data : &nothing;
}

std::byte* OpRequest::allocate(size_t index, int64_t rows) {
  std::vector<int64_t> dims = inputs_[index].dims;
  if (!dims.empty()) dims[0] = rows;
  const int output = static_cast<int>(index);
  return allocate_as(output, tensorflow().TF_ExpectedOutputDataType(context_, output), dims);
}

bool OpRequest::allocate_output(int index, size_t rows) {
  Tensor& tensor = tensors[static_cast<size_t>(index)];
  tensor.output = allocate(static_cast<size_t>(index), static_cast<int64_t>(rows));
  return tensor.output != nullptr;
}

bool OpRequest::allocate_vector(int index, std::vector<int64_t> dims, int64_t** data) {
  *data = reinterpret_cast<int64_t*>(allocate_as(index, TF_INT64, dims));
  return *data != nullptr;
}

bool OpRequest::write_received() {
  std::vector<int64_t> dims{static_cast<int64_t>(received.size())};
  if (spec.collective == Collective::kAllgather) {
    const auto arrays = static_cast<int64_t>(tensors.size());
    dims = {arrays, static_cast<int64_t>(received.size()) / arrays};
  }
  int64_t* data = nullptr;
  if (!allocate_vector(received_output, dims, &data)) return false;
  std::copy(received.begin(), received.end(), data);
  return true;
}

void OpRequest::complete(const Status& status) {
  Status last = !failure_.ok() ? failure_ : status;
  if (last.ok() && received_output >= 0 && !write_received()) last = failure_;
  if (!last.ok()) {
    const TfStatus tf_status = new_status();
    tensorflow().TF_SetStatus(tf_status.get(), static_cast<TF_Code>(last.code()),
                              last.message().c_str());
    tensorflow().TF_OpKernelContext_Failure(context_, tf_status.get());
  }
  inputs_.clear();
  outputs_.clear();
  // The request goes before the step does: done() may free what the kernel owns.
  const std::function<void()> done = std::move(done_);
  delete this;
  done();
}

namespace {

struct Kernel {
  Spec spec;
  bool (*prepare)(OpRequest&);
};

bool read_spec(TF_OpKernelConstruction* construction, Spec* spec) {
  const TfStatus status = new_status();
  int32_t list = 0, bytes = 0;
  tensorflow().TF_OpKernelConstruction_GetAttrSize(construction, "spec", &list, &bytes,
                                                   status.get());
  std::string text(is_ok(status) ? static_cast<size_t>(bytes) : 0, '\0');
  if (is_ok(status))
    tensorflow().TF_OpKernelConstruction_GetAttrString(construction, "spec", text.data(),
                                                       text.size(), status.get());
  if (is_ok(status)) {
    const Status parsed = Spec::parse(text, spec);
    if (!parsed.ok())
      tensorflow().TF_SetStatus(status.get(), TF_INVALID_ARGUMENT, parsed.message().c_str());
  }
  if (is_ok(status)) return true;
  tensorflow().TF_OpKernelConstruction_Failure(construction, status.get());
  return false;
}

// TensorFlow passes no user data to `create`: each op gets a function of its own.
template <const OpDefinition& (*definition)()>
void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  kernel->prepare = definition().prepare;
  return read_spec(construction, &kernel->spec) ? kernel.release() : nullptr;
}

void compute(void* raw, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const auto& kernel = *static_cast<const Kernel*>(raw);
  auto* request = new OpRequest(kernel.spec, context, done);
  if (kernel.prepare(*request))
    submit(request);
  else
    request->complete({});
}

void destroy(void* raw) {
  delete static_cast<Kernel*>(raw);
}

void shapes_of_inputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto& tf = tensorflow();
  for (int i = 0; i < tf.TF_ShapeInferenceContextNumInputs(context); ++i) {
    TF_ShapeHandle* shape = tf.TF_NewShapeHandle();
    tf.TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf.TF_GetCode(status) == TF_OK)
      tf.TF_ShapeInferenceContextSetOutput(context, i, shape, status);
    tf.TF_DeleteShapeHandle(shape);
  }
}

void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  tensorflow().TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void check(const TfStatus& status) {
  if (is_ok(status)) return;
  std::fprintf(stderr, "ringar | TensorFlow refused an op: %s\n",
               tensorflow().TF_Message(status.get()));
  std::abort();
}

template <const OpDefinition& (*definition)()>
void register_op() {
  const auto& tf = tensorflow();
  const OpDefinition& op = definition();
  const TfStatus status = new_status();
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(op.name);
  for (const char* attr : op.attrs) tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  for (const char* input : op.inputs) tf.TF_OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : op.outputs) tf.TF_OpDefinitionBuilderAddOutput(builder, output);
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(
      builder, op.outputs_shaped_as_inputs ? shapes_of_inputs : unknown_shapes);
  tf.TF_RegisterOpDefinition(builder, status.get());
  check(status);
  tf.TF_RegisterKernelBuilder(
      op.name, tf.TF_NewAsyncKernelBuilder(op.name, "CPU", create<definition>, compute, destroy),
      status.get());
  check(status);
}

// load_op_library finds the ops that are registered while the library is being opened.
__attribute__((constructor)) void register_all() {
  if (!tensorflow().complete) return;
  register_op<allreduce_op>();
  register_op<reducescatter_op>();
  register_op<allgather_op>();
  register_op<broadcast_op>();
  register_op<alltoall_op>();
  register_op<barrier_op>();
}

}  // namespace
}  // namespace ringar

extern "C" int ringar_has_tensorflow_ops(void) {
  return ringar::tensorflow().complete;
}
