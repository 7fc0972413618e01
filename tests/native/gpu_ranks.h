// The stand-in for CUDA and NCCL (tests/standins/gpu/), as tests of ranks use it.

#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "ranks.h"

namespace ringar::test {

// What tests control the stand-in with; see tests/standins/gpu/standin.h.
struct GpuStandin {
  void (*fail)(const char* call, int nth);
  void (*fail_later)(const char* call, int nth);
  int (*calls)(const char* call);
  const char* (*open)();
  const char* (*misuse)();
  void (*forget)();
  void (*devices)(int count);
  void (*enqueue)(void* stream, void (*function)(void*), void* argument);
};

// Opened in this process, which is not to fork afterwards.
const GpuStandin& gpu_standin();

// Starts an engine whose GPU is the stand-in's.
std::unique_ptr<Engine> start_with_gpu(const Rank& rank);

// Nothing was misused, and all is given back.
void expect_clean_gpu();

}  // namespace ringar::test
