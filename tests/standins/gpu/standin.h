// A stand-in for the CUDA driver and NCCL, for tests where there is no GPU.
//
// One shared library exports what tf_ops/links/cuda_abi.h and nccl_abi.h list. It is no simulation
// of a GPU: how fast it is says nothing. It is there so that code that drives a GPU runs in tests,
// asynchronously as on a GPU, and is watched more closely than a GPU would watch it.
//
// Memory. Device memory is memory of the process, filled with 0xEE, with a guard behind it; what
// was freed is filled with 0xDD and held back for a while. Copies, collectives and waits look up
// each range that they touch: it has to lie in what is allocated, where it begins in anything that
// this library has allocated. Other memory (NumPy arrays, say) is taken as it is.
//
// Streams are queues with a thread each, started by their first operation: operations run later, in
// order. So are the default streams of a device (null and 1 are one, 2 is another). The default
// streams wait for nobody: where CUDA would order them before or after other streams by itself,
// this library does not. An event is a mark in a stream.
//
// Contexts. A device has its primary context, and each thread a stack of current ones. Calls that
// need a current context refuse to go without, and refuse streams and events of another one.
//
// NCCL. Ranks are processes, or threads of one. A communicator is memory that all ranks map
// (meeting.h); the unique id says where it is. Communicators are nonblocking: a job of a thread
// brings the ranks together, and calls, or groups of them, reach their stream a millisecond after
// they have returned ncclInProgress; a stream that is used before that is a misuse. An operation
// meets the other ranks when its stream runs it. It compares what each of them calls, then moves
// data pairwise, and reduces in the order of ranks. It ends when all that it sends has been taken.
// After an asynchronous error it ends by ncclCommAbort only, and its outputs are then filled with
// 0x77. The death of a rank is such an error on those that wait for it.
//
// Stricter than NCCL: every collective compares counts, types, roots, factors and its number on all
// ranks; a sender waits for its receiver; ranks that share a GPU are refused where they see
// several. Not there: several streams of one communicator in a group, communicators that are
// made in a group, collectives of other types than ringar's, graphs of CUDA.
//
// What is wrong with how the library is used is a line of standin_misuse(), and of stderr. What a
// call returns then is what CUDA or NCCL would return, as far as they notice.
//
// The process must not fork between its first use of a stream or a communicator and exec: children
// would have the streams without their threads, and cuInit tells them so.

#pragma once

#include <cstddef>
#include <string>

#include "links/cuda_abi.h"
#include "links/nccl_abi.h"

#define STANDIN_EXPORT __attribute__((visibility("default")))

// Declared by the lists, in whose namespaces the definitions then are: what is defined with other
// arguments does not compile.
#define STANDIN_DECLARE(name, exported, arguments) \
  extern "C" STANDIN_EXPORT Result exported arguments;
namespace ringar::cuda {
RINGAR_CUDA_FUNCTIONS(STANDIN_DECLARE)
constexpr Result kInvalidDevice = 101, kInvalidContext = 201, kInvalidHandle = 400,
                 kCaptureUnsupported = 900, kUnknown = 999;
}  // namespace ringar::cuda
namespace ringar::nccl {
RINGAR_NCCL_FUNCTIONS(STANDIN_DECLARE)
constexpr Result kUnhandledCudaError = 1, kInvalidArgument = 4, kInvalidUsage = 5;
}  // namespace ringar::nccl

// What tests control the library with.
extern "C" {
// The nth call of it from now on (1: the next) fails, with CUDA_ERROR_UNKNOWN or ncclInternalError,
// and does nothing; 0: none does. A suffix _v2 may be left out, here and below. A failing
// ncclGroupEnd ends the group without its calls, as NCCL's does. The variable STANDIN_FAIL does the
// same from the start: "ncclAllReduce:2,cuEventCreate:1".
STANDIN_EXPORT void standin_fail(const char* call, int nth);
// The same with another error; NCCL then says this text of it.
STANDIN_EXPORT void standin_fail_with(const char* call, int nth, int code, const char* text);
// The nth call of it from now on does not return before standin_release(), as where a driver hangs.
STANDIN_EXPORT void standin_hang(const char* call, int nth);
STANDIN_EXPORT void standin_release();
// The nth of these operations, groups or new communicators is an asynchronous error,
// ncclRemoteError: it does not end until its communicator is aborted. A new communicator or a split
// is in progress for the seconds of standin_lateness() before that; ncclCommFinalize stays in
// progress. Also by the variable STANDIN_FAIL_LATER.
STANDIN_EXPORT void standin_fail_later(const char* call, int nth);
STANDIN_EXPORT void standin_lateness(double seconds);
// How often it was called, failing calls included.
STANDIN_EXPORT int standin_calls(const char* call);
// What this process has not given back: "", or "contexts=1 streams=0 events=3 device_bytes=64
// host_bytes=0 communicators=1 redops=0 groups=0" (contexts: retained and not released).
STANDIN_EXPORT const char* standin_open();
// What was misused so far, a line each; "" if nothing.
STANDIN_EXPORT const char* standin_misuse();
// Forgets misuses, counts of calls, and calls that are to fail.
STANDIN_EXPORT void standin_forget();
// A "kernel" of the test: it runs in the order of the stream, on its thread. The default streams
// are those of the current context, or of device 0 where there is none.
STANDIN_EXPORT void standin_enqueue(void* stream, void (*function)(void*), void* argument);
// Memory of the test on the current device; standin_open does not count it.
STANDIN_EXPORT void* standin_allocate(size_t bytes);
STANDIN_EXPORT void standin_free(void* memory);
// Whether this stream is being captured, as cuStreamIsCapturing then says. Meanwhile threads that
// have not relaxed their mode must not allocate, free or ask events.
STANDIN_EXPORT void standin_capture(void* stream, int is_capturing);
// How many contexts are on the stack of this thread.
STANDIN_EXPORT int standin_current_contexts();
// What ncclGetVersion says, 22703 from the start.
STANDIN_EXPORT void standin_pretend_version(int nccl_version);
// How many devices there are; from the start as many as the variable STANDIN_DEVICES says, or 1.
STANDIN_EXPORT void standin_devices(int count);
// The first device of this process is GPU number `gpu` of a host, or a part of it (MIG). Else
// several devices are GPU 0, 1, …, and one is a GPU that no other process has.
STANDIN_EXPORT void standin_place(int host, int gpu);
// Seconds for which a rank waits for another one, 60 from the start (or STANDIN_TIMEOUT).
STANDIN_EXPORT void standin_timeout(double seconds);
// Not in the lists.
STANDIN_EXPORT const char* ncclGetErrorString(int code);
STANDIN_EXPORT const char* ncclGetLastError(ringar::nccl::Comm comm);
}

namespace standin {

// Counts a call; whether it is to fail.
bool fails(const char* call);
// What a call returns that fails.
int code_of_failure(const char* call, int otherwise);
// Counts an operation; whether it is to fail when it runs.
bool fails_later(const char* call);
void misuse(const std::string& call, const std::string& text);

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
// A text that stays until the same thread asks again.
const char* lend(const std::string& text);
// A moment of a wait: two cores have to do for four ranks.
void pause();
double now();  // seconds
double timeout();
constexpr int kMostDevices = 16;
int devices();
int nccl_version();
// Where a device is. It is not known to others where it is alone and was not placed.
struct Place {
  int host, gpu;
  bool is_known;
};
Place place_of(int device);
double lateness();
// Keeps the library in the process from now on: threads run its code.
void stay();

}  // namespace standin

// The first line of what is exported.
#define STANDIN_CALL(failure) \
  if (standin::fails(__func__)) return standin::code_of_failure(__func__, failure)
