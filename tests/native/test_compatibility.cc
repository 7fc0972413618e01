// What stands in for functions that old systems lack (tf_ops/compatibility).

#include <cerrno>
#include <thread>

#include "check.h"
#include "compatibility/clock_wait.h"

namespace ringar::test {
namespace {

constexpr long kSecond = 1'000'000'000;

long nanoseconds_until(const timespec& until) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (until.tv_sec - now.tv_sec) * kSecond + until.tv_nsec - now.tv_nsec;
}

struct Condition {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

  int wait(const timespec& until) {
    return wait_by_wall_clock(&condition, &mutex, CLOCK_MONOTONIC, &until);
  }
};

TEST(clock_wait_ends_at_its_moment) {
  for (const long milliseconds : {0L, 30L, 700L, 1100L}) {
    Condition condition;
    timespec until{};
    clock_gettime(CLOCK_MONOTONIC, &until);
    const long nanoseconds = until.tv_nsec + milliseconds * 1'000'000;
    until.tv_sec += nanoseconds / kSecond;
    until.tv_nsec = nanoseconds % kSecond;
    pthread_mutex_lock(&condition.mutex);
    EXPECT_EQ(condition.wait(until), ETIMEDOUT);
    pthread_mutex_unlock(&condition.mutex);
    EXPECT(nanoseconds_until(until) < 5'000'000);  // the clocks of a machine differ by less
    EXPECT(nanoseconds_until(until) > -20 * kSecond);
  }
}

TEST(clock_wait_ends_when_it_is_told) {
  Condition condition;
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += 60;
  bool is_notified = false;
  pthread_mutex_lock(&condition.mutex);
  std::thread teller([&] {
    pthread_mutex_lock(&condition.mutex);
    is_notified = true;
    pthread_cond_signal(&condition.condition);
    pthread_mutex_unlock(&condition.mutex);
  });
  while (!is_notified) EXPECT_EQ(condition.wait(until), 0);
  pthread_mutex_unlock(&condition.mutex);
  teller.join();
  EXPECT(nanoseconds_until(until) > 0);
}

}  // namespace
}  // namespace ringar::test
