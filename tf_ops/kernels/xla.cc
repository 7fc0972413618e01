// The collectives inside compiled functions (tf.function(jit_compile=True)): one XLA custom call;
// and how any custom call is registered.
//
// The call's text is a spec with shapes. Operands are a token and the arrays; results are a token
// and the arrays. XLA may reorder calls that share no data, so ringar/collectives/compiled.py makes
// each call's token an operand of the next.
//
// The target "ringar_failure" fails on purpose, so that Python can try once whether errors arrive,
// before any collective is compiled.

#include "kernels/xla.h"

#include "engine/engine_instance.h"
#include "kernels/compiled_request.h"
#include "kernels/tensorflow.h"

namespace ringar {
namespace {

Status run_collective(const XlaCall& call) {
  Spec spec;
  RINGAR_RETURN_IF_ERROR(Spec::parse(call.text(), &spec));
  void* const* const results = call.results(spec.shapes.size() + 1);
  *static_cast<float*>(results[0]) = 0;  // the token: defined, and meaningless
  CompiledRequest request(spec, results, call.operands());
  return run(request);
}

Status fail_on_purpose(const XlaCall& call) {
  return {RINGAR_DEVICE, std::string(call.text())};
}

// xla::CustomCallTargetRegistry is a C++ class that libtensorflow_cc.so.2 exports.
struct OlderRegistry {
  void* (*global)() = reinterpret_cast<void* (*)()>(
      find_in_tensorflow("_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  void (*add)(void*, const std::string&, void*, const std::string&) =
      reinterpret_cast<decltype(add)>(find_in_tensorflow(
          "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_"
          "traitsIcESaIcEEEPvS8_"));
};

const OlderRegistry& older_registry() {
  static const OlderRegistry registry;
  return registry;
}

// Null where TensorFlow has none, or one of another version.
const ffi::Api* typed_api() {
  static const ffi::Api* const api = []() -> const ffi::Api* {
    void* get = find_in_tensorflow("XLA_FFI_GetApi");
    if (!get) get = find_in_tensorflow("_ZN3xla3ffi12GetXlaFfiApiEv");
    const auto* const there = get ? reinterpret_cast<const ffi::Api* (*)()>(get)() : nullptr;
    const bool fits = there && there->struct_size >= sizeof(ffi::Api) &&
                      there->version.major == ffi::kMajor && there->version.minor >= ffi::kMinor;
    return fits ? there : nullptr;
  }();
  return api;
}

bool typed_are_accepted = true;

}  // namespace

void register_target_of_collectives() {
  register_target<run_collective>("ringar_collective");
  register_target<fail_on_purpose>("ringar_failure");
}

namespace xla_forms {
namespace {

bool tells_version(const ffi::CallFrame& frame) {
  for (ffi::Extension* e = frame.extension; e; e = e->next) {
    if (e->type != ffi::kExtensionMetadata) continue;
    ffi::Metadata& metadata = *reinterpret_cast<ffi::MetadataExtension*>(e)->metadata;
    metadata.version.major = ffi::kMajor;
    metadata.version.minor = ffi::kMinor;
    metadata.traits = 0;
    return true;
  }
  return false;
}

std::string_view text_of(const ffi::Attrs& attrs) {
  for (int64_t i = 0; i < attrs.size; ++i) {
    const ffi::Bytes& name = *attrs.names[i];
    if (attrs.types[i] != ffi::kAttrString || std::string_view(name.data, name.size) != "text")
      continue;
    const auto& text = *static_cast<const ffi::Bytes*>(attrs.values[i]);
    return {text.data, text.size};
  }
  return {};
}

// Null where XLA gives none.
void* stream_of(const ffi::CallFrame& frame) {
  ffi::StreamGetArgs args;
  args.context = frame.context;
  if (ffi::Error* const error = frame.api->stream_get(&args)) {
    ffi::ErrorDestroyArgs destroy;
    destroy.error = error;
    frame.api->error_destroy(&destroy);
    return nullptr;
  }
  return args.stream;
}

}  // namespace

// XLA asks for the version through the same function that it calls.
ffi::Error* run_typed(XlaTarget* target, ffi::CallFrame* frame, Stream stream) {
  if (tells_version(*frame) || frame->stage != ffi::kExecute) return nullptr;
  std::vector<const void*> operands;
  std::vector<void*> results;
  for (int64_t i = 0; i < frame->operands.size; ++i)
    operands.push_back(frame->operands.buffers[i]->data);
  for (int64_t i = 0; i < frame->results.size; ++i)
    results.push_back(frame->results.buffers[i]->data);
  void* const handle = stream == Stream::kOfGpu ? stream_of(*frame) : nullptr;
  const Status done = target(XlaCall(results, operands, text_of(frame->attrs), handle));
  if (done.ok()) return nullptr;
  ffi::ErrorCreateArgs error;
  error.message = done.message().c_str();
  return frame->api->error_create(&error);
}

}  // namespace xla_forms

void register_target(const std::string& name, void* older, ffi::Handler* typed,
                     const std::string& platform) {
  const OlderRegistry& registry = older_registry();
  if (registry.global && registry.add) registry.add(registry.global(), name, older, platform);
  const ffi::Api* const api = typed_api();
  if (!api) return;
  ffi::RegisterArgs args;
  args.name = {name.data(), name.size()};
  args.platform = {platform.data(), platform.size()};
  args.bundle.execute = typed;
  ffi::ErrorDestroyArgs destroy;
  destroy.error = api->handler_register(&args);
  if (!destroy.error) return;
  typed_are_accepted = false;
  api->error_destroy(&destroy);
}

}  // namespace ringar

extern "C" int ringar_has_xla_target(void) {
  const ringar::OlderRegistry& registry = ringar::older_registry();
  return registry.global && registry.add;
}

extern "C" int ringar_has_typed_xla_target(void) {
  return ringar::typed_api() && ringar::typed_are_accepted;
}
