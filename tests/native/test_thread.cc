// What the engine asks of the system for its own threads.

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "check.h"
#include "engine/thread.h"

namespace ringar::test {
namespace {

int nice_of_this_thread() {
  return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)));
}

// With whatever niceness a job was started, and in whatever class.
TEST(threads_keep_their_class_and_niceness) {
  for (const int policy : {SCHED_OTHER, SCHED_BATCH, SCHED_IDLE}) {
    std::thread([&] {
      const sched_param none{};
      EXPECT_EQ(sched_setscheduler(0, policy, &none), 0);
      EXPECT_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 7), 0);
      begin_thread("ringar test");
      char name[16];
      EXPECT_EQ(pthread_getname_np(pthread_self(), name, sizeof name), 0);
      EXPECT_EQ(std::string(name), "ringar test");
      EXPECT_EQ(sched_getscheduler(0), policy);
      EXPECT_EQ(nice_of_this_thread(), 7);
    }).join();
  }
}

}  // namespace
}  // namespace ringar::test
