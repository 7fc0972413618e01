// A stand-in for CUDA, for tests where there is no GPU: runs kernels' blocks one after the other,
// a block's threads as fibers of one thread, each up to its next barrier. It checks more than a GPU
// does: a barrier that not all threads reach, or reach in different places, is an error; shared
// memory begins as NaN, and what lies behind it must stay as it is; the order in which threads run
// between barriers can be turned round, so that a missing barrier shows. How fast it is says
// nothing of a GPU.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#endif

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __syncthreads() cuda_host::wait(cuda_host::State::kBlock, __LINE__)
#define __syncwarp() cuda_host::wait(cuda_host::State::kWarp, __LINE__)

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

template <class T>
static inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
static inline T max(T a, T b) {
  return a < b ? b : a;
}

namespace cuda_host {

enum class State { kReady, kWarp, kBlock, kDone };
enum Order { kForward = 0, kBackward = 1, kMixed = 2 };

constexpr size_t kStack = 64 * 1024;
constexpr unsigned char kBehind = 0xA5;
constexpr unsigned kWarpSize = 32;

struct Fiber {
  State state = State::kDone;
  int line = 0;
  bool started = false;
  ucontext_t context;
  jmp_buf place;
  std::vector<char> stack;
};

static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static ucontext_t scheduler_context;
static unsigned current = 0;
static std::function<void()> body;
static std::string failure;

static void leave() {
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}

static void wait(State state, int line) {
  fibers[current].state = state;
  fibers[current].line = line;
  leave();
}

static void fiber_main() {
  for (;;) {
    body();
    fibers[current].state = State::kDone;
    leave();
  }
}

static void resume(unsigned thread) {
  current = thread;
  threadIdx.x = thread;
  Fiber& fiber = fibers[thread];
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  fiber.stack.resize(kStack);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = &scheduler_context;
  makecontext(&fiber.context, fiber_main, 0);
  swapcontext(&scheduler_context, &fiber.context);
}

// Lets the threads from `first` go on if all of them wait at the same barrier.
static bool release(unsigned first, unsigned end, State state) {
  for (unsigned t = first; t < end; ++t) {
    if (fibers[t].state != state || fibers[t].line != fibers[first].line) return false;
  }
  for (unsigned t = first; t < end; ++t) fibers[t].state = State::kReady;
  return true;
}

static bool release_any(unsigned threads) {
  bool any = release(0, threads, State::kBlock);
  for (unsigned w = 0; w < threads; w += kWarpSize) {
    any = release(w, min(w + kWarpSize, threads), State::kWarp) || any;
  }
  return any;
}

static bool run_block(unsigned threads, int order) {
  for (unsigned t = 0; t < threads; ++t) fibers[t].state = State::kReady;
  do {
    for (unsigned i = 0; i < threads; ++i) {
      const unsigned t = order == kForward    ? i
                         : order == kBackward ? threads - 1 - i
                                              : (i * 5 + 3) % threads;  // threads is 2^k
      if (fibers[t].state == State::kReady) resume(t);
    }
  } while (release_any(threads));
  for (unsigned t = 0; t < threads; ++t) {
    if (fibers[t].state == State::kDone) continue;
    failure = "thread " + std::to_string(t) + " waits for others at line " +
              std::to_string(fibers[t].line) + ", in block " + std::to_string(blockIdx.x);
    // Its stack is of no use any longer.
    for (Fiber& fiber : fibers) fiber.started = false;
    return false;
  }
  return true;
}

template <class T>
T argument(uint64_t value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

template <class... T, size_t... I>
void call(void (*kernel)(T...), const uint64_t* values, std::index_sequence<I...>) {
  kernel(argument<T>(values[I])...);
}

// Launches a kernel; the arguments come as 64 bits each, with the sizes that they were given in.
template <class... T>
const char* launch(void (*kernel)(T...), void* shared, size_t capacity, unsigned grid,
                   unsigned block, size_t shared_bytes, int count, const uint64_t* values,
                   const int* sizes, int order) {
  failure.clear();
  const size_t expected[] = {sizeof(T)...};
  if (count != int(sizeof...(T))) failure = "wrong number of arguments";
  for (int i = 0; failure.empty() && i < count; ++i) {
    if (size_t(sizes[i]) != expected[i]) failure = "wrong size of argument " + std::to_string(i);
  }
  if (shared_bytes + 64 > capacity) failure = "more shared memory than expected";
  if (!failure.empty()) return failure.c_str();
  if (fibers.size() < block) fibers.resize(block);
  body = [=] { call(kernel, values, std::index_sequence_for<T...>()); };
  blockDim.x = block;
  gridDim.x = grid;
  auto* bytes = static_cast<unsigned char*>(shared);
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    std::memset(bytes, 0xFF, shared_bytes);  // NaN as float and as double
    std::memset(bytes + shared_bytes, kBehind, 64);
    ASAN_POISON_MEMORY_REGION(bytes + shared_bytes, capacity - shared_bytes);
    const bool done = run_block(block, order);
    ASAN_UNPOISON_MEMORY_REGION(bytes + shared_bytes, capacity - shared_bytes);
    if (!done) return failure.c_str();
    for (int i = 0; i < 64; ++i) {
      if (bytes[shared_bytes + i] != kBehind) return "wrote behind the shared memory";
    }
  }
  return nullptr;
}

}  // namespace cuda_host
