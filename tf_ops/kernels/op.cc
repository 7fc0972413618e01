#include "kernels/op.h"

#include <memory>
#include <string>

#include "engine/engine_instance.h"
#include "kernels/done.h"

namespace ringar {
namespace {

template <int kBesides>  // inputs that are no tensors of the collective, at the end
void shapes_of_inputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto& tf = tensorflow();
  for (int i = 0; i < tf.TF_ShapeInferenceContextNumInputs(context) - kBesides; ++i) {
    TF_ShapeHandle* shape = tf.TF_NewShapeHandle();
    tf.TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf.TF_GetCode(status) == TF_OK)
      tf.TF_ShapeInferenceContextSetOutput(context, i, shape, status);
    tf.TF_DeleteShapeHandle(shape);
  }
}

}  // namespace

bool read_spec(TF_OpKernelConstruction* construction, Spec* spec) {
  const TfStatus status = new_status();
  std::string text;
  if (read_text(construction, "spec", &text, status)) {
    const Status parsed = Spec::parse(text, spec);
    if (parsed.ok()) return true;
    tensorflow().TF_SetStatus(status.get(), TF_INVALID_ARGUMENT, parsed.message().c_str());
  }
  tensorflow().TF_OpKernelConstruction_Failure(construction, status.get());
  return false;
}

void define_op(const OpDefinition& op, const std::string& name, bool has_ticket) {
  const auto& tf = tensorflow();
  const TfStatus status = new_status();
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(name.c_str());
  for (const char* attr : op.attrs) tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  for (const char* input : op.inputs) tf.TF_OpDefinitionBuilderAddInput(builder, input);
  if (has_ticket) tf.TF_OpDefinitionBuilderAddInput(builder, "ticket: int64");
  for (const char* output : op.outputs) tf.TF_OpDefinitionBuilderAddOutput(builder, output);
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  const auto as_inputs = has_ticket ? shapes_of_inputs<1> : shapes_of_inputs<0>;
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(
      builder, op.outputs_shaped_as_inputs ? as_inputs : unknown_shapes);
  tf.TF_RegisterOpDefinition(builder, status.get());
  expect_accepted(status);
}

namespace {

struct Kernel {
  Spec spec;
  bool (*prepare)(OpRequest&) = nullptr;
  OpRequests requests{spec};
};

// TensorFlow passes no user data to `create`: each op gets a function of its own.
template <const OpDefinition& (*definition)()>
void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  kernel->prepare = definition().prepare;
  return read_spec(construction, &kernel->spec) ? kernel.release() : nullptr;
}

void compute(void* raw, TF_OpKernelContext* context) {
  auto& kernel = *static_cast<Kernel*>(raw);
  OpRequest* request = kernel.requests.take(context, nullptr);
  request->complete(kernel.prepare(*request) ? run(*request) : Status());
}

void fail(TF_OpKernelContext* context, const Status& failure) {
  const auto& tf = tensorflow();
  const TfStatus status = new_status();
  tf.TF_SetStatus(status.get(), static_cast<TF_Code>(failure.code()), failure.message().c_str());
  tf.TF_OpKernelContext_Failure(context, status.get());
}

// A collective that has drawn a ticket and does not come ends its step.
void end_step(int64_t step, const Status& failure) {
  const auto running = engine();
  if (running) running->end_step(step, failure);
}

void compute_async(void* raw, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  if (const Status& checked = check_done(done); !checked.ok()) {
    fail(context, checked);
    end_step(tensorflow().TF_StepId(context), checked);
    return tensorflow().TF_RunAsyncOpKernelDoneCallback(done);
  }
  auto& kernel = *static_cast<Kernel*>(raw);
  OpRequest* request = kernel.requests.take(context, done);
  if (request->read_ticket() && kernel.prepare(*request)) return submit(request);
  end_step(request->step, request->failure());
  request->complete({});
}

void destroy(void* raw) {
  delete static_cast<Kernel*>(raw);
}

template <const OpDefinition& (*definition)()>
void register_op() {
  const auto& tf = tensorflow();
  const std::string name = definition().name, async = name + "Async";
  define_op(definition(), name, false);
  define_op(definition(), async, true);
  add_kernel(name,
             tf.TF_NewKernelBuilder(name.c_str(), "CPU", create<definition>, compute, destroy));
  add_kernel(async, tf.TF_NewAsyncKernelBuilder(async.c_str(), "CPU", create<definition>,
                                                compute_async, destroy));
}

}  // namespace

void register_collectives() {
  register_ticket();
  register_op<allreduce_op>();
  register_op<reducescatter_op>();
  register_op<allgather_op>();
  register_op<broadcast_op>();
  register_op<alltoall_op>();
  register_op<barrier_op>();
  register_op<send_op>();
  register_op<recv_op>();
}

}  // namespace ringar
