#include "engine/gpu_monitor.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "engine/thread.h"
#include "engine/watchdog.h"
#include "links/pending_call.h"

namespace ringar {
namespace {

constexpr auto kMonitorPeriod = std::chrono::milliseconds(500);
constexpr double kCallGrace = 5;  // seconds, in which the call may still return

std::string describe(const LongestCall& call) {
  return std::string(call.name) + " has not returned for " + text_of_seconds(call.seconds) +
         ": the GPU or its driver hangs. See dmesg for an Xid, and nvidia-smi";
}

}  // namespace

GpuMonitor::GpuMonitor(double deadline, Report report)
    : deadline_(deadline), report_(std::move(report)), thread_([this] { thread_main(); }) {}

GpuMonitor::~GpuMonitor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  news_.notify_all();
  thread_.join();
}

void GpuMonitor::forget_report() {
  const std::lock_guard<std::mutex> lock(report_mutex_);
  report_ = nullptr;
}

void GpuMonitor::tell(const Status& why) {
  const std::lock_guard<std::mutex> lock(report_mutex_);
  if (report_) report_(why);
}

// A process that was stopped (Ctrl-Z) sees a long call for a moment: the second look decides.
void GpuMonitor::thread_main() {
  begin_thread("ringar monitor");
  int looks = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!news_.wait_for(lock, kMonitorPeriod, [&] { return closing_; })) {
    const LongestCall call = longest_call();
    looks = call.name && call.seconds > deadline_ ? looks + 1 : 0;
    if (looks == 2) tell({RINGAR_DEVICE, describe(call)});
    if (looks < 2 || call.seconds < deadline_ + kCallGrace) continue;
    std::fprintf(stderr, "ringar: process %d ends, since %s\n", getpid(), describe(call).c_str());
    _exit(1);
  }
}

}  // namespace ringar
