// The driver's functions on memory.

#include <cstring>
#include <vector>

#include "driver.h"
#include "memory.h"

namespace ringar::cuda {

using standin::Arguments;
using standin::Memory;
using standin::memory;
using standin::text;

namespace {

void* address_of(Pointer pointer) {
  return reinterpret_cast<void*>(pointer);
}

// Whether both ranges may be used now.
bool is_right(const char* call, void* to, const void* from, size_t bytes, int device) {
  const std::string write = memory().fault(to, bytes, device);
  const std::string read = from ? memory().fault(from, bytes, device) : "";
  if (!write.empty()) standin::misuse(call, "writes " + write);
  if (!read.empty()) standin::misuse(call, "reads " + read);
  const auto* const a = static_cast<const char*>(to);
  const auto* const b = static_cast<const char*>(from);
  const bool overlap = from && a < b + bytes && b < a + bytes;
  if (overlap) standin::misuse(call, "the ranges overlap");
  return write.empty() && read.empty() && !overlap;
}

Result copy(const char* call, void* to, const void* from, size_t bytes, Stream stream) {
  Arguments arguments(call);
  const auto queue = arguments.stream(stream);
  arguments.need(bytes == 0 || (to && from), text("%zu bytes from %p to %p", bytes, from, to));
  if (arguments.error) return arguments.error;
  standin::must_rest(*queue, call);
  queue->enqueue([=, device = arguments.device] {
    if (bytes > 0 && is_right(call, to, from, bytes, device)) std::memcpy(to, from, bytes);
  });
  return kSuccess;
}

}  // namespace

Result cuMemAlloc_v2(Pointer* memory, size_t bytes) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  arguments.need_no_capture();
  arguments.need(bytes > 0, "no bytes");
  if (arguments.error) return arguments.error;
  *memory = reinterpret_cast<Pointer>(
      standin::memory().allocate(Memory::kDevice, bytes, arguments.device));
  return *memory ? kSuccess : kOutOfMemory;
}

// Unlike that of CUDA, it does not wait for the device: what still uses the memory is a misuse.
Result cuMemFree_v2(Pointer memory) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  arguments.need_no_capture();
  if (arguments.error) return arguments.error;
  const std::string fault = standin::memory().free(Memory::kDevice, address_of(memory));
  arguments.need(fault.empty(), fault);
  return arguments.error;
}

Result cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  arguments.need_no_capture();
  arguments.need(bytes > 0, "no bytes");
  arguments.need(flags <= 7, text("there are no flags %#x", flags));
  if (arguments.error) return arguments.error;
  *memory = standin::memory().allocate(Memory::kHost, bytes, -1, flags & kHostDeviceMap);
  return *memory ? kSuccess : kOutOfMemory;
}

Result cuMemFreeHost(void* memory) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  arguments.need_no_capture();
  if (arguments.error) return arguments.error;
  const std::string fault = standin::memory().free(Memory::kHost, memory);
  arguments.need(fault.empty(), fault);
  return arguments.error;
}

Result cuMemHostGetDevicePointer_v2(Pointer* pointer, void* memory, unsigned flags) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  arguments.need(flags == 0, "flags must be 0");
  arguments.need(standin::memory().is_host(memory, true),
                 text("%p is no memory of the host that was to be mapped", memory));
  if (arguments.error) return arguments.error;
  *pointer = reinterpret_cast<Pointer>(memory);
  return kSuccess;
}

Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, Stream s) {
  STANDIN_CALL(kUnknown);
  return copy(__func__, address_of(to), address_of(from), bytes, s);
}

// As in CUDA, a copy to memory that is not of cuMemHostAlloc is waited for.
Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, Stream s) {
  STANDIN_CALL(kUnknown);
  if (const Result error = copy(__func__, to, address_of(from), bytes, s)) return error;
  if (memory().is_host(to, false)) return kSuccess;
  const auto mark = Arguments(__func__).stream(s)->mark();
  while (!mark->passed.load(std::memory_order_acquire)) standin::pause();
  return kSuccess;
}

// As in CUDA, a copy from memory that is not of cuMemHostAlloc is read before the call returns.
Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, Stream s) {
  STANDIN_CALL(kUnknown);
  if (bytes == 0 || !from || memory().is_host(from, false) ||
      !memory().fault(from, bytes, -1).empty())
    return copy(__func__, address_of(to), from, bytes, s);
  Arguments arguments(__func__);
  const auto queue = arguments.stream(s);
  if (arguments.error) return arguments.error;
  standin::must_rest(*queue, __func__);
  const auto* const begin = static_cast<const char*>(from);
  queue->enqueue([call = __func__, to = address_of(to), device = arguments.device,
                  read = std::vector<char>(begin, begin + bytes)] {
    if (is_right(call, to, nullptr, read.size(), device)) std::memcpy(to, read.data(), read.size());
  });
  return kSuccess;
}

Result cuMemsetD8Async(Pointer memory, unsigned char value, size_t bytes, Stream s) {
  STANDIN_CALL(kUnknown);
  Arguments arguments(__func__);
  const auto queue = arguments.stream(s);
  if (arguments.error) return arguments.error;
  standin::must_rest(*queue, __func__);
  queue->enqueue(
      [call = __func__, to = address_of(memory), value, bytes, device = arguments.device] {
        if (bytes > 0 && is_right(call, to, nullptr, bytes, device)) std::memset(to, value, bytes);
      });
  return kSuccess;
}

}  // namespace ringar::cuda

extern "C" {

void* standin_allocate(size_t bytes) {
  return standin::memory().allocate(standin::Memory::kTest, bytes, standin::current_device());
}

void standin_free(void* pointer) {
  const std::string fault = pointer ? standin::memory().free(standin::Memory::kTest, pointer) : "";
  if (!fault.empty()) standin::misuse(__func__, fault);
}

}  // extern "C"
