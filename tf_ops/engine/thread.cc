#include "engine/thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace ringar {
namespace {

constexpr uint64_t kSliceNanoseconds = 100'000;  // the shortest that Linux gives

// The first version of the kernel's sched_attr, which glibc has since 2.41.
struct Attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;  // of an ordinary thread, `runtime` is its slice
};

void ask_for_short_slices() {
  constexpr pid_t kThisThread = 0;
  Attributes now{};
  if (syscall(SYS_sched_getattr, kThisThread, &now, sizeof now, 0) != 0) return;
  if (now.policy != SCHED_OTHER && now.policy != SCHED_BATCH) return;
  now.size = sizeof now;
  now.runtime = kSliceNanoseconds;
  (void)syscall(SYS_sched_setattr, kThisThread, &now, 0);
}

}  // namespace

void begin_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  ask_for_short_slices();
}

}  // namespace ringar
