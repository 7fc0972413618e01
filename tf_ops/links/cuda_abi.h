// The part of the CUDA driver's interface that ringar uses, declared here so that building needs no
// CUDA, and looked up when the first collective on a GPU comes.
//
// tests/test_cuda_abi.py compiles these declarations against <cuda.h>.

#pragma once

#include <cstddef>
#include <cstdint>

#include "links/pending_call.h"

namespace ringar::cuda {

using Result = int;      // CUresult, an enum
using Device = int;      // CUdevice
using Pointer = size_t;  // CUdeviceptr

#ifdef RINGAR_USE_CUDA_HEADERS
using Context = ::CUcontext;
using Stream = ::CUstream;
using Event = ::CUevent;
#else
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
#endif

constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3;
constexpr Result kStubLibrary = 34, kDeviceUnavailable = 46, kNoDevice = 100, kNotLicensed = 102;
constexpr Result kEccError = 214, kNvlinkError = 220, kNotReady = 600, kIllegalAddress = 700;
constexpr Result kLaunchTimeout = 702, kLaunchFailed = 719, kNotSupported = 801;
constexpr Result kSystemNotReady = 802, kDriverMismatch = 803, kCompatNotSupported = 804;
constexpr Result kNoMps = 805;
inline void* const kStreamPerThread = reinterpret_cast<void*>(2);
constexpr int kOldestVersion = 12000;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostPortable = 1, kHostDeviceMap = 2;  // of memory of the host
constexpr unsigned kWaitValueEqual = 1;
constexpr int kCaptureNone = 0;     // of a stream
constexpr int kCaptureRelaxed = 2;  // of a thread

// RINGAR_CUDA_FUNCTIONS(F) calls F(name without "cu", exported name, type of its arguments).
#define RINGAR_CUDA_FUNCTIONS(F)                                                                   \
  F(Init, cuInit, (unsigned flags))                                                                \
  F(DriverGetVersion, cuDriverGetVersion, (int* version))                                          \
  F(GetErrorName, cuGetErrorName, (Result error, const char** name))                               \
  F(GetErrorString, cuGetErrorString, (Result error, const char** text))                           \
  F(DeviceGetCount, cuDeviceGetCount, (int* count))                                                \
  F(DeviceGet, cuDeviceGet, (Device * device, int ordinal))                                        \
  F(DeviceGetPCIBusId, cuDeviceGetPCIBusId, (char* bus, int bytes, Device device))                 \
  F(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (Context * context, Device device))          \
  F(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (Device device))                        \
  F(CtxPushCurrent, cuCtxPushCurrent_v2, (Context context))                                        \
  F(CtxPopCurrent, cuCtxPopCurrent_v2, (Context * context))                                        \
  F(CtxGetDevice, cuCtxGetDevice, (Device * device))                                               \
  F(StreamCreate, cuStreamCreate, (Stream * stream, unsigned flags))                               \
  F(StreamCreateWithPriority, cuStreamCreateWithPriority,                                          \
    (Stream * stream, unsigned flags, int priority))                                               \
  F(StreamDestroy, cuStreamDestroy_v2, (Stream stream))                                            \
  F(StreamGetCtx, cuStreamGetCtx, (Stream stream, Context * context))                              \
  F(StreamIsCapturing, cuStreamIsCapturing, (Stream stream, int* status))                          \
  F(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int* mode))               \
  F(StreamWaitEvent, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))              \
  F(StreamWaitValue32, cuStreamWaitValue32_v2,                                                     \
    (Stream stream, Pointer address, uint32_t value, unsigned flags))                              \
  F(StreamWriteValue32, cuStreamWriteValue32_v2,                                                   \
    (Stream stream, Pointer address, uint32_t value, unsigned flags))                              \
  F(StreamSynchronize, cuStreamSynchronize, (Stream stream))                                       \
  F(EventCreate, cuEventCreate, (Event * event, unsigned flags))                                   \
  F(EventDestroy, cuEventDestroy_v2, (Event event))                                                \
  F(EventRecord, cuEventRecord, (Event event, Stream stream))                                      \
  F(EventQuery, cuEventQuery, (Event event))                                                       \
  F(MemAlloc, cuMemAlloc_v2, (Pointer * memory, size_t bytes))                                     \
  F(MemFree, cuMemFree_v2, (Pointer memory))                                                       \
  F(MemHostAlloc, cuMemHostAlloc, (void** memory, size_t bytes, unsigned flags))                   \
  F(MemFreeHost, cuMemFreeHost, (void* memory))                                                    \
  F(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                         \
    (Pointer * pointer, void* memory, unsigned flags))                                             \
  F(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (Pointer to, Pointer from, size_t bytes, Stream s))     \
  F(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void* to, Pointer from, size_t bytes, Stream s))       \
  F(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (Pointer to, const void* from, size_t bytes, Stream s)) \
  F(MemsetD8Async, cuMemsetD8Async, (Pointer memory, unsigned char value, size_t bytes, Stream s))

struct Functions {
#define RINGAR_DECLARE(name, exported, arguments) Noted<Result arguments> name;
  RINGAR_CUDA_FUNCTIONS(RINGAR_DECLARE)
#undef RINGAR_DECLARE
};

}  // namespace ringar::cuda
