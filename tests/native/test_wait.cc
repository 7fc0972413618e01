// The one way to wait for others: when it looks, rests, checks and ends.

#include <sched.h>

#include <thread>

#include "check.h"
#include "engine/watchdog.h"
#include "ranks.h"

namespace ringar::test {
namespace {

constexpr double kTooLong = 30;  // seconds, which no wait here takes unless it misses something

TEST(wait_rests_for_a_part_of_the_time_waited) {
  const Rest rest{0, 1e-4, 1e-2};
  EXPECT_EQ(rest.after(0), 1e-4);
  EXPECT_EQ(rest.after(0.04), 0.005);
  EXPECT_EQ(rest.after(5), 1e-2);
  const Rest woken = Rest::until_woken(1);
  EXPECT_EQ(woken.after(0), woken.after(100));
}

TEST(wait_looks_until_done_and_checks_before_it_sleeps) {
  int looks = 0, checks = 0;
  const auto third = [&](bool* done) -> Status {
    *done = ++looks == 3;
    return {};
  };
  const auto check = [&]() -> Status {
    ++checks;
    return {};
  };
  EXPECT_OK(wait_until(Rest{0, 0, 0}, nullptr, third, check));
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(checks, 2);
}

TEST(wait_ends_with_an_error_of_a_look_or_a_check) {
  const auto fails = [](bool*) { return Status(RINGAR_PEER_LOST, "look"); };
  const auto never = [](bool*) { return Status(); };
  EXPECT_EQ(wait_until(Rest{kTooLong}, nullptr, fails).message(), "look");
  const auto check = [] { return Status(RINGAR_DEADLINE, "check"); };
  EXPECT_EQ(wait_until(Rest{1e-4}, nullptr, never, check).message(), "check");
}

// Each wake-up must arrive: a lost one would cost a sleep of 30 s, and the test its deadline.
TEST(wait_is_woken_by_its_flag) {
  Flag flags[2];
  on_threads(2, [&](Rank& me) {
    for (uint64_t turn = 1; turn <= 1000; ++turn) {
      if (me.rank == 0) flags[0].store(turn);
      EXPECT_OK(wait_until(Rest{turn % 2 ? 0 : 1e-5, kTooLong, kTooLong}, &flags[1 - me.rank],
                           [&](bool* done) -> Status {
                             *done = flags[1 - me.rank].reached(turn);
                             return {};
                           }));
      if (me.rank == 1) flags[1].store(turn);
    }
  });
}

TEST(wait_lasts_at_most_so_long) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT(!wait_at_most(0.02, {}, [] { return false; }));
  EXPECT(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
  int looks = 0;
  EXPECT(wait_at_most(kTooLong, {}, [&] { return ++looks == 2; }));
  EXPECT(wait_at_most(0, {}, [] { return true; }));
}

// On a core where another thread computes, a yield takes that one's time slice, and so the wait
// does not poll to the end of its time. Nor does the next one.
TEST_APART(wait_sleeps_where_others_compute) {
  cpu_set_t cpus, target;
  EXPECT_EQ(sched_getaffinity(0, sizeof cpus, &cpus), 0);
  CPU_ZERO(&target);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&target) == 0; ++cpu)
    if (CPU_ISSET(cpu, &cpus)) CPU_SET(cpu, &target);
  EXPECT_EQ(sched_setaffinity(0, sizeof target, &target), 0);
  std::atomic<bool> over{false};
  std::thread computing([&] {
    while (!over.load()) relax();
  });
  int looks = 0;
  const auto never = [&](bool*) -> Status {
    ++looks;
    return {};
  };
  const auto asleep = [] { return Status(RINGAR_DEADLINE, "it sleeps"); };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(wait_until(Rest{kTooLong}, nullptr, never, asleep).code(), RINGAR_DEADLINE);
  EXPECT(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(kTooLong));
  looks = 0;
  EXPECT_EQ(wait_until(Rest{kTooLong}, nullptr, never, asleep).code(), RINGAR_DEADLINE);
  EXPECT_EQ(looks, 1);
  over.store(true);
  computing.join();
}

// A watch may be asked at any time, and looks every 20 ms, or when this rank shuts down.
TEST(watchdog_looks_now_and_then) {
  std::atomic<bool> stop{false};
  const Timeouts timeouts{600, 600, 0, &stop};
  const std::vector<int> members{0, 1};
  const OpState op_state{0, 0, 0, members, nullptr};
  int looks = 0;
  const auto trouble = [&] {
    ++looks;
    return std::string();
  };
  const auto whom = [] { return std::string("1"); };
  Watchdog watchdog(timeouts, op_state);
  const auto ask = [&] { return watchdog.check(trouble, whom); };
  while (watchdog.seconds() < 0.1) EXPECT_OK(ask());
  EXPECT(looks >= 1);
  EXPECT(looks <= 5);
  const int before = looks;
  stop.store(true);
  EXPECT_CONTAINS(ask().message(), "this rank shut ringar down before rank 1 took part");
  EXPECT_EQ(looks, before + 1);
}

// What a stop of the process (Ctrl-Z) takes does not count, however long it is.
TEST(a_stopwatch_stands_still_while_nobody_asks) {
  Stopwatch stopwatch;
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  const double duration = stopwatch.seconds();
  EXPECT(duration >= 1);
  EXPECT(duration < 2);
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT(stopwatch.seconds() >= duration + 0.02 * (i + 1));
  }
}

}  // namespace
}  // namespace ringar::test
