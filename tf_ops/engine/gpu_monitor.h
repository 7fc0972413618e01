// Ends a process in which a call of CUDA or NCCL does not return.
//
// Every wait of ringar has a deadline, but a driver whose GPU hangs keeps the thread that has
// called it, and often, by its locks, every other thread that calls it. No error can be raised on
// such a thread. This one calls neither: past the deadline of collectives it tells the other ranks,
// and ends the process if the call does not return then.

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/status.h"

namespace ringar {

class GpuMonitor {
 public:
  // Tells the other ranks; on the monitor's thread.
  using Report = std::function<void(const Status&)>;

  GpuMonitor(double deadline, Report report);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // There is nobody left to tell. Returns after a report that is under way.
  void forget_report();

 private:
  void thread_main();
  void tell(const Status& why);

  const double deadline_;
  std::mutex mutex_, report_mutex_;
  std::condition_variable news_;
  Report report_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ringar
