// Waiting on a condition until a moment of any clock, with what glibc before 2.30 has.

#pragma once

#include <pthread.h>
#include <time.h>

namespace ringar {

// Like pthread_cond_clockwait, but by the wall clock: returns early or late where that is set
// meanwhile. std::condition_variable looks at its own clock afterwards.
inline int wait_by_wall_clock(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                              const timespec* until) {
  constexpr long kSecond = 1'000'000'000;
  timespec now{}, wall{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  const long nanoseconds = wall.tv_nsec + until->tv_nsec - now.tv_nsec;
  wall.tv_sec += until->tv_sec - now.tv_sec + (nanoseconds >= kSecond) - (nanoseconds < 0);
  wall.tv_nsec = (nanoseconds + kSecond) % kSecond;
  return pthread_cond_timedwait(condition, mutex, &wall);
}

}  // namespace ringar
