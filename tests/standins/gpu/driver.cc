// Devices and contexts.

#include "driver.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <vector>

#include "memory.h"
#include "per_thread.h"

namespace standin {
namespace {

namespace cuda = ringar::cuda;

struct Device {
  std::mutex mutex;
  std::atomic<int> retained{0};
  std::shared_ptr<Stream> defaults[2];  // null and 1; 2
};

Device& device_of(int ordinal) {
  static auto& all = *new std::array<Device, kMostDevices>;
  return all[static_cast<size_t>(ordinal)];
}

std::atomic<int> initialized_in{0};  // the process

// A thread's stack of current contexts, by device.
std::vector<int>& current() {
  static auto& stacks = *new PerThread<std::vector<int>>;
  return *stacks;
}

constexpr uint64_t kContexts = uint64_t{0x5a05} << 48;

cuda::Context context_of(int device) {
  return reinterpret_cast<cuda::Context>(kContexts + 16 * (static_cast<uint64_t>(device) + 1));
}

// -1: there is no such context.
int device_of(cuda::Context context) {
  const uint64_t number = (reinterpret_cast<uint64_t>(context) - kContexts) / 16 - 1;
  return number < kMostDevices && context == context_of(static_cast<int>(number))
             ? static_cast<int>(number)
             : -1;
}

cuda::Result check_device(int device, const char* call) {
  if (!is_initialized()) {
    misuse(call, "cuInit was not called");
    return cuda::kNotInitialized;
  }
  if (device >= 0 && device < devices()) return cuda::kSuccess;
  misuse(call, text("there is no device %d, of %d", device, devices()));
  return cuda::kInvalidDevice;
}

}  // namespace

// Never destroyed, here and below: threads may still use them when the process ends.
Handles<Stream, cuda::Stream>& streams() {
  static auto& all = *new Handles<Stream, cuda::Stream>("stream", 1);
  return all;
}

Handles<Event, cuda::Event>& events() {
  static auto& all = *new Handles<Event, cuda::Event>("event", 2);
  return all;
}

bool is_default(cuda::Stream stream) {
  return reinterpret_cast<uint64_t>(stream) <= 2;
}

std::shared_ptr<Stream> find_stream(cuda::Stream stream, int device, const char* call) {
  if (!is_default(stream)) return streams().find(stream, call);
  Device& owner = device_of(device);
  const std::lock_guard<std::mutex> lock(owner.mutex);
  std::shared_ptr<Stream>& queue = owner.defaults[reinterpret_cast<uint64_t>(stream) / 2];
  if (!queue) queue = std::make_shared<Stream>(device);
  return queue;
}

void must_rest(const Stream& stream, const char* call) {
  if (stream.announced > 0) misuse(call, "stream used while its communicator is in progress");
}

size_t retained_contexts() {
  size_t sum = 0;
  for (int i = 0; i < kMostDevices; ++i) sum += static_cast<size_t>(device_of(i).retained);
  return sum;
}

int current_device() {
  return current().empty() || device_of(current().back()).retained == 0 ? -1 : current().back();
}

bool is_initialized() {
  return initialized_in == getpid();
}

Arguments::Arguments(const char* call) : call(call), device(current_device()) {
  need(is_initialized(), "cuInit was not called", cuda::kNotInitialized);
  if (error) return;
  need(!current().empty(), "no current context", cuda::kInvalidContext);
  if (error) return;
  need(device >= 0, "the current context was released", cuda::kInvalidContext);
}

void Arguments::need(bool is_right, const std::string& otherwise, cuda::Result error) {
  if (is_right || this->error) return;
  misuse(call, otherwise);
  this->error = error;
}

void Arguments::need_device(int device, const char* object) {
  need(this->device == device,
       text("%s of device %d, while the current context is that of device %d", object, device,
            this->device),
       cuda::kInvalidHandle);
}

std::shared_ptr<Stream> Arguments::stream(cuda::Stream stream) {
  if (error) return nullptr;
  const auto queue = find_stream(stream, device, call);
  if (queue)
    need_device(queue->device, "stream");
  else
    error = cuda::kInvalidHandle;
  return queue;
}

std::shared_ptr<Event> Arguments::event(cuda::Event event) {
  if (error) return nullptr;
  const auto state = events().find(event, call);
  if (state)
    need_device(state->device, "event");
  else
    error = cuda::kInvalidHandle;
  return state;
}

}  // namespace standin

extern "C" int standin_current_contexts() {
  return static_cast<int>(standin::current().size());
}

namespace ringar::cuda {

using standin::text;

Result cuInit(unsigned flags) {
  STANDIN_CALL(kUnknown);
  if (flags != 0) standin::misuse(__func__, "flags must be 0");
  if (flags != 0) return kInvalidValue;
  if (standin::devices() == 0) return kNoDevice;
  int nobody = 0;
  if (standin::initialized_in.compare_exchange_strong(nobody, getpid()) || nobody == getpid())
    return kSuccess;
  standin::misuse(__func__, text("process %d has called it, and has forked this one", nobody));
  return kNotInitialized;
}

Result cuDriverGetVersion(int* version) {
  STANDIN_CALL(kUnknown);
  *version = 12040;
  return kSuccess;
}

Result cuDeviceGetCount(int* count) {
  STANDIN_CALL(kUnknown);
  if (standin::devices() > 0)
    if (const Result error = standin::check_device(0, __func__)) return error;
  *count = standin::devices();
  return kSuccess;
}

Result cuDeviceGet(Device* device, int ordinal) {
  STANDIN_CALL(kUnknown);
  if (const Result error = standin::check_device(ordinal, __func__)) return error;
  *device = ordinal;
  return kSuccess;
}

Result cuDeviceGetPCIBusId(char* bus, int bytes, Device device) {
  STANDIN_CALL(kUnknown);
  if (const Result error = standin::check_device(device, __func__)) return error;
  const auto gpu = static_cast<unsigned>(standin::place_of(device).gpu);
  std::snprintf(bus, static_cast<size_t>(bytes), "%04x:%02x:%02x.0", gpu >> 16 & 0xffff,
                gpu >> 8 & 0xff, gpu & 0xff);
  return kSuccess;
}

Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  STANDIN_CALL(kUnknown);
  if (const Result error = standin::check_device(device, __func__)) return error;
  ++standin::device_of(device).retained;
  *context = standin::context_of(device);
  return kSuccess;
}

// With the last release a context takes all that is its own with it; nobody should count on that.
Result cuDevicePrimaryCtxRelease_v2(Device device) {
  STANDIN_CALL(kUnknown);
  if (const Result error = standin::check_device(device, __func__)) return error;
  std::atomic<int>& retained = standin::device_of(device).retained;
  if (retained == 0) standin::misuse(__func__, "the context was not retained");
  if (retained == 0) return kInvalidContext;
  if (--retained > 0) return kSuccess;
  const size_t streams = standin::streams().count(device), events = standin::events().count(device),
               bytes = standin::memory().bytes(standin::Memory::kDevice, device);
  if (streams + events + bytes > 0)
    standin::misuse(__func__, text("the context still has %zu streams, %zu events, %zu bytes",
                                   streams, events, bytes));
  return kSuccess;
}

Result cuCtxPushCurrent_v2(Context context) {
  STANDIN_CALL(kUnknown);
  const int device = standin::device_of(context);
  const bool is_right = device >= 0 && standin::device_of(device).retained > 0;
  if (!is_right) standin::misuse(__func__, text("no context that is retained: %p", context));
  if (!is_right) return kInvalidContext;
  standin::current().push_back(device);
  return kSuccess;
}

Result cuCtxPopCurrent_v2(Context* context) {
  STANDIN_CALL(kUnknown);
  if (standin::current().empty()) standin::misuse(__func__, "no current context");
  if (standin::current().empty()) return kInvalidContext;
  if (context) *context = standin::context_of(standin::current().back());
  standin::current().pop_back();
  return kSuccess;
}

Result cuCtxGetDevice(Device* device) {
  STANDIN_CALL(kUnknown);
  const standin::Arguments arguments(__func__);
  if (!arguments.error) *device = arguments.device;
  return arguments.error;
}

// Of a stream that was created, it is asked in order to learn its context.
Result cuStreamGetCtx(Stream stream, Context* context) {
  STANDIN_CALL(kUnknown);
  if (standin::is_default(stream)) {
    const standin::Arguments arguments(__func__);
    if (!arguments.error) *context = standin::context_of(arguments.device);
    return arguments.error;
  }
  const auto queue = standin::streams().find(stream, __func__);
  if (!queue) return kInvalidHandle;
  *context = standin::context_of(queue->device);
  return kSuccess;
}

namespace {

struct Error {
  Result code;
  const char *name, *text;
};

constexpr Error kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kStubLibrary, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {kDeviceUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kSystemNotReady, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {kDriverMismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

Result say(Result code, const char* Error::* field, const char** answer) {
  *answer = nullptr;
  for (const Error& error : kErrors)
    if (error.code == code) *answer = error.*field;
  return *answer ? kSuccess : kInvalidValue;
}

}  // namespace

Result cuGetErrorName(Result error, const char** name) {
  STANDIN_CALL(kUnknown);
  return say(error, &Error::name, name);
}

Result cuGetErrorString(Result error, const char** text) {
  STANDIN_CALL(kUnknown);
  return say(error, &Error::text, text);
}

}  // namespace ringar::cuda
