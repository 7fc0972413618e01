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
  Arguments given(function);
  given.need(flags <= kStreamNonBlocking, text("there are no flags %#x", flags));
  if (given.error) return given.error;
  *stream = standin::streams().add(std::make_shared<standin::Stream>(given.device));
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
  Arguments given(__func__);
  given.need(!standin::is_default(stream), "a default stream", kInvalidHandle);
  const auto found = given.stream(stream);
  if (given.error) return given.error;
  standin::must_rest(*found, __func__);
  standin::streams().remove(stream, __func__);
  found->close();
  return kSuccess;
}

Result cuStreamIsCapturing(Stream stream, int* status) {
  STANDIN_CALL(kUnknown);
  Arguments given(__func__);
  const auto found = given.stream(stream);
  if (given.error) return given.error;
  *status = found->is_capturing ? 1 : kCaptureNone;
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
  Arguments given(__func__);
  const auto found = given.stream(stream);
  if (given.error) return given.error;
  standin::must_rest(*found, __func__);
  const auto mark = found->mark();
  while (!mark->passed.load(std::memory_order_acquire)) standin::pause();
  return kSuccess;
}

// The wait is for the latest record at this moment.
Result cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments given(__func__);
  const auto waiting = given.stream(stream);
  const auto awaited = given.event(event);
  given.need(flags == 0, text("there are no flags %#x", flags));
  if (given.error) return given.error;
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
  Arguments given(__func__);
  const auto found = given.stream(stream);
  given.need(flags == 0, text("flags %#x are not known here", flags));
  given.need(address != 0 && address % sizeof value == 0, text("no aligned word: %#zx", address));
  if (given.error) return given.error;
  standin::must_rest(*found, __func__);
  auto* const word = reinterpret_cast<uint32_t*>(address);
  found->enqueue([word, value, device = given.device] {
    const std::string wrong = standin::memory().wrong(word, sizeof value, device);
    if (!wrong.empty()) return standin::misuse("cuStreamWriteValue32_v2", wrong);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  });
  return kSuccess;
}

Result cuStreamWaitValue32_v2(Stream stream, Pointer address, uint32_t value, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments given(__func__);
  const auto found = given.stream(stream);
  given.need(flags == kWaitValueEqual, text("flags %#x are not known here", flags));
  given.need(address != 0 && address % sizeof value == 0, text("no aligned word: %#zx", address));
  if (given.error) return given.error;
  standin::must_rest(*found, __func__);
  const auto* const word = reinterpret_cast<const uint32_t*>(address);
  found->enqueue([word, value, device = given.device] {
    while (true) {
      const std::string wrong = standin::memory().wrong(word, sizeof value, device);
      if (!wrong.empty()) return standin::misuse("cuStreamWaitValue32_v2", wrong);
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) return;
      standin::pause();
    }
  });
  return kSuccess;
}

Result cuEventCreate(Event* event, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments given(__func__);
  given.need(flags <= 3, text("flags %#x are not known here", flags));
  if (given.error) return given.error;
  *event = standin::events().add(std::make_shared<standin::Event>(given.device));
  return kSuccess;
}

Result cuEventDestroy_v2(Event event) {
  STANDIN_CALL(kUnknown);
  Arguments given(__func__);
  given.event(event);
  if (given.error) return given.error;
  standin::events().remove(event, __func__);
  return kSuccess;
}

Result cuEventRecord(Event event, Stream stream) {
  STANDIN_CALL(kUnknown);
  Arguments given(__func__);
  const auto recorded = given.event(event);
  const auto found = given.stream(stream);
  if (given.error) return given.error;
  standin::must_rest(*found, __func__);
  const std::lock_guard<std::mutex> lock(recorded->mutex);
  recorded->latest = found->mark();
  return kSuccess;
}

Result cuEventQuery(Event event) {
  STANDIN_CALL(kUnknown);
  Arguments given(__func__);
  const auto asked = given.event(event);
  given.need_no_capture();
  if (given.error) return given.error;
  const std::lock_guard<std::mutex> lock(asked->mutex);
  const bool is_passed = !asked->latest || asked->latest->passed.load(std::memory_order_acquire);
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
  const auto found = stream_of_test(stream, __func__);
  if (!found) return;
  standin::must_rest(*found, __func__);
  found->enqueue([function, argument] { function(argument); });
}

void standin_capture(void* stream, int is_capturing) {
  const auto found = stream_of_test(stream, __func__);
  if (!found) return;
  const bool was = found->is_capturing.exchange(is_capturing != 0);
  standin::captured += (is_capturing != 0) - was;
}

}  // extern "C"
