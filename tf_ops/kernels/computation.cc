#include "kernels/computation.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <numeric>
#include <sstream>

#include "kernels/tensorflow.h"
#include "kernels/xla.h"

namespace ringar {

Options::Options(std::string_view text) {
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    RINGAR_CHECK(equals != std::string::npos);
    values_[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

int64_t Options::number(const std::string& name) const {
  const std::string& value = text(name);
  return value.empty() ? 0 : std::strtoll(value.c_str(), nullptr, 10);
}

const std::string& Options::text(const std::string& name) const {
  static const std::string nothing;
  const auto entry = values_.find(name);
  return entry == values_.end() ? nothing : entry->second;
}

namespace {

std::string describe(const Dims& dims) {
  std::string text = "[";
  for (const int64_t dim : dims) text += (text.size() > 1 ? "," : "") + std::to_string(dim);
  return text + "]";
}

}  // namespace

int Options::threads() const {
  constexpr int64_t kMost = 1024;
  return static_cast<int>(std::clamp<int64_t>(number("threads"), 1, kMost));
}

bool Options::is_double() const {
  return text("dtype") == "float64";
}

Status expect_dims(const char* computation, const char* input, const Dims& received,
                   const Dims& expected) {
  if (received == expected) return {};
  return {RINGAR_MISMATCH, std::string(computation) + ": expected " + input + " of the shape " +
                               describe(expected) + ", as the other inputs have it, received " +
                               describe(received)};
}

namespace {

Status run(const Computation& computation, const Options& options, const Inputs& inputs,
           const Outputs& outputs) {
  try {
    (options.is_double() ? computation.run_double : computation.run_float)(options, inputs,
                                                                           outputs);
  } catch (const std::bad_alloc&) {
    return {RINGAR_OUT_OF_MEMORY, std::string(computation.name) + ": expected memory for the " +
                                      "products of the tree, received none. Use fewer levels."};
  }
  return {};
}

// --- TensorFlow ---

class Kernel {
 public:
  Kernel(const Computation& computation, const std::string& options)
      : computation_(computation), options_(options) {}

  void compute(TF_OpKernelContext* context) const {
    const TfStatus status = new_status();
    const Status done = compute(context, status);
    if (!done.ok())
      tensorflow().TF_SetStatus(status.get(), static_cast<TF_Code>(done.code()),
                                done.message().c_str());
    if (!is_ok(status)) tensorflow().TF_OpKernelContext_Failure(context, status.get());
  }

 private:
  Status compute(TF_OpKernelContext* context, const TfStatus& status) const {
    const auto& tf = tensorflow();
    std::vector<TfTensor> tensors;
    Inputs inputs;
    for (int i = 0; i < tf.TF_NumInputs(context); ++i) {
      TfTensor tensor = input(context, i, status);
      if (!is_ok(status)) return {};
      inputs.data.push_back(tf.TF_TensorData(tensor.get()));
      inputs.dims.emplace_back();
      for (int d = 0; d < tf.TF_NumDims(tensor.get()); ++d)
        inputs.dims.back().push_back(tf.TF_Dim(tensor.get(), d));
      // TensorFlow hands on the memory of an input that nobody holds.
      if (i != computation_.in_place.input) tensors.push_back(std::move(tensor));
    }
    RINGAR_RETURN_IF_ERROR(computation_.check(inputs.dims));
    Outputs outputs;
    for (const Dims& dims : computation_.shapes(options_, inputs.dims)) {
      const auto index = static_cast<int>(outputs.size());
      tensors.push_back(index == computation_.in_place.output
                            ? hand_on(context, dims, inputs, tensors, status)
                            : allocate(context, index, dims, status));
      if (!is_ok(status)) return {};
      outputs.push_back(tf.TF_TensorData(tensors.back().get()));
    }
    return run(computation_, options_, inputs, outputs);
  }

  static TfTensor input(TF_OpKernelContext* context, int index, const TfStatus& status) {
    TF_Tensor* tensor = nullptr;
    tensorflow().TF_GetInput(context, index, &tensor, status.get());
    return TfTensor(tensor);
  }

  TfTensor allocate(TF_OpKernelContext* context, int index, const Dims& dims,
                    const TfStatus& status) const {
    const auto& tf = tensorflow();
    const int64_t elements =
        std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<int64_t>());
    const size_t bytes = static_cast<size_t>(elements) * (options_.is_double() ? 8 : 4);
    return TfTensor(tf.TF_AllocateOutput(context, index,
                                         tf.TF_ExpectedOutputDataType(context, index), dims.data(),
                                         static_cast<int>(dims.size()), bytes, status.get()));
  }

  // The output that may have the memory of an input; the input, which nothing held so far, is held
  // from then on.
  TfTensor hand_on(TF_OpKernelContext* context, const Dims& dims, const Inputs& inputs,
                   std::vector<TfTensor>& tensors, const TfStatus& status) const {
    const auto& tf = tensorflow();
    const auto [from, to] = computation_.in_place;
    int forwarded = -1;
    TfTensor output = inputs.dims[static_cast<size_t>(from)] == dims
                          ? TfTensor(tf.TF_ForwardInputOrAllocateOutput(
                                context, &from, 1, to, dims.data(), static_cast<int>(dims.size()),
                                &forwarded, status.get()))
                          : allocate(context, to, dims, status);
    if (is_ok(status)) tensors.push_back(input(context, from, status));
    return output;
  }

  const Computation& computation_;
  const Options options_;
};

template <const Computation& (*computation)()>
void* create(TF_OpKernelConstruction* construction) {
  std::string text;
  const TfStatus status = new_status();
  if (read_text(construction, "options", &text, status)) return new Kernel(computation(), text);
  tensorflow().TF_OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void compute(void* kernel, TF_OpKernelContext* context) {
  static_cast<const Kernel*>(kernel)->compute(context);
}

void destroy(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

template <const Computation& (*computation)()>
void register_op() {
  const auto& tf = tensorflow();
  const char* name = computation().name;
  const TfStatus status = new_status();
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(name);
  for (const char* attr : {"Tin: list(type) >= 1", "Tout: list(type) >= 1", "options: string"})
    tf.TF_OpDefinitionBuilderAddAttr(builder, attr);
  tf.TF_OpDefinitionBuilderAddInput(builder, "inputs: Tin");
  tf.TF_OpDefinitionBuilderAddOutput(builder, "outputs: Tout");
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, unknown_shapes);
  tf.TF_RegisterOpDefinition(builder, status.get());
  expect_accepted(status);
  add_kernel(name, tf.TF_NewKernelBuilder(name, "CPU", create<computation>, compute, destroy));
}

// --- XLA ---

// "3x4,5": XLA tells its target no shapes.
std::vector<Dims> read_dims(const std::string& text) {
  std::vector<Dims> all;
  std::istringstream arrays(text);
  for (std::string array; std::getline(arrays, array, ',');) {
    all.emplace_back();
    std::istringstream dims(array);
    for (std::string dim; std::getline(dims, dim, 'x');)
      all.back().push_back(std::strtoll(dim.c_str(), nullptr, 10));
  }
  return all;
}

template <const Computation& (*computation)()>
Status call(const XlaCall& call) {
  const Options options(call.text());
  Inputs in;
  in.dims = read_dims(options.text("inputs"));
  in.data.assign(call.operands(), call.operands() + in.dims.size());
  const size_t count = computation().shapes(options, in.dims).size();
  void* const* const results = call.results(count);
  return run(computation(), options, in, Outputs(results, results + count));
}

// --- both ---

template <const Computation& (*computation)()>
void register_computation() {
  register_op<computation>();
  register_target<call<computation>>(computation().target_name);
}

}  // namespace

void register_computations() {
  register_computation<scan_computation>();
  register_computation<scan_reduce_computation>();
  register_computation<simple_rnn_computation>();
  register_computation<simple_rnn_gradient_computation>();
  register_computation<simple_rnn_jacobians_computation>();
  register_computation<gru_computation>();
  register_computation<gru_gradient_computation>();
  register_computation<gru_jacobians_computation>();
  register_computation<lstm_computation>();
  register_computation<lstm_gradient_computation>();
  register_computation<simple_rnn_pack_computation>();
  register_computation<gru_pack_computation>();
  register_computation<lstm_pack_computation>();
  register_computation<simple_rnn_chunk_gradient_computation>();
  register_computation<gru_chunk_gradient_computation>();
  register_computation<lstm_chunk_gradient_computation>();
  register_computation<simple_rnn_weights_computation>();
  register_computation<gru_weights_computation>();
  register_computation<lstm_weights_computation>();
  register_computation<sparse_multiply_computation>();
  register_computation<sparse_gradient_computation>();
}

}  // namespace ringar
