// The driver's functions on streams and events, and what tests enqueue.

#include <atomic>
#include <utility>

#include "driver.h"
#include "memory.h"
#include "per_thread.h"

namespace standin {
namespace {

std::atomic<int> captured{0};  // streams

// What a thread may do while streams are captured: a CUstreamCaptureMode.
int& capture_mode() {
  static auto& modes = *new PerThread<int>;
  return *modes;
}

}  // namespace

void Arguments::need_no_capture() {
  need(captured == 0 || capture_mode() != 0,
       "a stream is being captured, and this thread has not said that it may do this meanwhile",
       ringar::cuda::kCaptureUnsupported);
}

}  // namespace standin

namespace ringar::cuda {

using standin::Arguments;
using standin::text;

namespace {

Result create_stream(const char* function, Stream* stream, unsigned flags) {
  Arguments arguments(function);
  arguments.need(flags <= kStreamNonBlocking, text("there are no flags %#x", flags));
  if (arguments.error) return arguments.error;
  *stream = standin::streams().add(std::make_shared<standin::Stream>(arguments.device));
  return kSuccess;
}

}  // namespace

// Streams have threads, which have no priorities. (Not by calling the other function: TensorFlow
// exports functions of the same names.)
Result cuStreamCreateWithPriority(Stream* stream, unsigned flags, int) {
  STANDIN_CALL(kUnknown);
  return create_stream(__func__, stream, flags);
}

Result cuStreamCreate(Stream* stream, unsigned flags) {
  STANDIN_CALL(kUnknown);
  return create_stream(__func__, stream, flags);
}

// What was enqueued runs on.
Result cuStreamDestroy_v2(Stream stream) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  arguments.need(!standin::is_default(stream), "a default stream", kInvalidHandle);
  const auto queue = arguments.stream(stream);
  if (arguments.error) return arguments.error;
  standin::must_rest(*queue, __func__);
  standin::streams().remove(stream, __func__);
  queue->close();
  return kSuccess;
}

Result cuStreamIsCapturing(Stream stream, int* status) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  const auto queue = arguments.stream(stream);
  if (arguments.error) return arguments.error;
  *status = queue->is_capturing ? 1 : kCaptureNone;
  return kSuccess;
}

Result cuThreadExchangeStreamCaptureMode(int* mode) {
  STANDIN_CALL(kUnknown);
  const bool is_one = *mode >= 0 && *mode <= kCaptureRelaxed;
  if (!is_one) standin::misuse(__func__, text("there is no mode %d", *mode));
  if (!is_one) return kInvalidValue;
  std::swap(*mode, standin::capture_mode());
  return kSuccess;
}

Result cuStreamSynchronize(Stream stream) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  const auto queue = arguments.stream(stream);
  if (arguments.error) return arguments.error;
  standin::must_rest(*queue, __func__);
  const auto mark = queue->mark();
  while (!mark->passed.load(std::memory_order_acquire)) standin::pause();
  return kSuccess;
}

// The wait is for the latest record at this moment.
Result cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  const auto waiting = arguments.stream(stream);
  const auto awaited = arguments.event(event);
  arguments.need(flags == 0, text("there are no flags %#x", flags));
  if (arguments.error) return arguments.error;
  standin::must_rest(*waiting, __func__);
  const std::lock_guard<std::mutex> lock(awaited->mutex);
  if (!awaited->latest) return kSuccess;
  waiting->enqueue([mark = awaited->latest] {
    while (!mark->passed.load(std::memory_order_acquire)) standin::pause();
  });
  return kSuccess;
}

Result cuStreamWriteValue32_v2(Stream stream, Pointer address, uint32_t value, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  const auto queue = arguments.stream(stream);
  arguments.need(flags == 0, text("flags %#x are not known here", flags));
  arguments.need(address != 0 && address % sizeof value == 0,
                 text("no aligned word: %#zx", address));
  if (arguments.error) return arguments.error;
  standin::must_rest(*queue, __func__);
  auto* const word = reinterpret_cast<uint32_t*>(address);
  queue->enqueue([word, value, device = arguments.device] {
    const std::string fault = standin::memory().fault(word, sizeof value, device);
    if (!fault.empty()) return standin::misuse("cuStreamWriteValue32_v2", fault);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  });
  return kSuccess;
}

Result cuStreamWaitValue32_v2(Stream stream, Pointer address, uint32_t value, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  const auto queue = arguments.stream(stream);
  arguments.need(flags == kWaitValueEqual, text("flags %#x are not known here", flags));
  arguments.need(address != 0 && address % sizeof value == 0,
                 text("no aligned word: %#zx", address));
  if (arguments.error) return arguments.error;
  standin::must_rest(*queue, __func__);
  const auto* const word = reinterpret_cast<const uint32_t*>(address);
  queue->enqueue([word, value, device = arguments.device] {
    while (true) {
      const std::string fault = standin::memory().fault(word, sizeof value, device);
      if (!fault.empty()) return standin::misuse("cuStreamWaitValue32_v2", fault);
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) return;
      standin::pause();
    }
  });
  return kSuccess;
}

Result cuEventCreate(Event* event, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  arguments.need(flags <= 3, text("flags %#x are not known here", flags));
  if (arguments.error) return arguments.error;
  *event = standin::events().add(std::make_shared<standin::Event>(arguments.device));
  return kSuccess;
}

Result cuEventDestroy_v2(Event event) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  arguments.event(event);
  if (arguments.error) return arguments.error;
  standin::events().remove(event, __func__);
  return kSuccess;
}

Result cuEventRecord(Event event, Stream stream) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  const auto recorded = arguments.event(event);
  const auto queue = arguments.stream(stream);
  if (arguments.error) return arguments.error;
  standin::must_rest(*queue, __func__);
  const std::lock_guard<std::mutex> lock(recorded->mutex);
  recorded->latest = queue->mark();
  return kSuccess;
}

Result cuEventQuery(Event event) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  const auto state = arguments.event(event);
  arguments.need_no_capture();
  if (arguments.error) return arguments.error;
  const std::lock_guard<std::mutex> lock(state->mutex);
  const bool is_passed = !state->latest || state->latest->passed.load(std::memory_order_acquire);
  return is_passed ? kSuccess : kNotReady;
}

}  // namespace ringar::cuda

namespace {

std::shared_ptr<standin::Stream> stream_of_test(void* stream, const char* call) {
  const int device = standin::current_device();
  return standin::find_stream(static_cast<ringar::cuda::Stream>(stream), device < 0 ? 0 : device,
                              call);
}

}  // namespace

extern "C" {

void standin_enqueue(void* stream, void (*function)(void*), void* argument) {
  const auto queue = stream_of_test(stream, __func__);
  if (!queue) return;
  standin::must_rest(*queue, __func__);
  queue->enqueue([function, argument] { function(argument); });
}

void standin_capture(void* stream, int is_capturing) {
  const auto queue = stream_of_test(stream, __func__);
  if (!queue) return;
  const bool was = queue->is_capturing.exchange(is_capturing != 0);
  standin::captured += (is_capturing != 0) - was;
}

}  // extern "C"
