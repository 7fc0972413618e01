// The stand-in for CUDA and NCCL (tests/standins/gpu/), as tests of ranks use it.

#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {

// What tests control the stand-in with; see tests/standins/gpu/standin.h.
struct GpuStandin {
  void (*fail)(const char* call, int nth);
  void (*fail_with)(const char* call, int nth, int code, const char* text);
  void (*hang)(const char* call, int nth);
  void (*release)();
  void (*fail_later)(const char* call, int nth);
  void (*lateness)(double seconds);
  int (*calls)(const char* call);
  const char* (*open)();
  const char* (*misuse)();
  void (*forget)();
  void (*devices)(int count);
  void (*place)(int host, int gpu);
  void (*pretend_version)(int nccl_version);
  void (*enqueue)(void* stream, void (*function)(void*), void* argument);
};

// Opened in this process, which is not to fork afterwards.
const GpuStandin& gpu_standin();

// Starts an engine whose GPU is the stand-in's.
std::unique_ptr<Engine> start_with_gpu(const Rank& rank);

// A request that stays until the process ends: after an error a stream may still use its arrays.
TestRequest& request_for(const std::string& spec);

// Of ones, waited for and compared.
Status allreduce_on_gpu(Engine& engine, const Rank& me, const std::string& name,
                        const std::string& options = "");

using Clock = std::chrono::steady_clock;

// Nothing was misused, and all is given back.
void expect_clean_gpu();

}  // namespace ringar::test
