// Flags between processes: every wake-up must arrive. A lost one would cost a sleep of 30 s, and
// the test its deadline.

#include <sys/mman.h>

#include <chrono>
#include <new>

#include "check.h"
#include "engine/flag.h"
#include "ranks.h"

namespace ringar::test {
namespace {

constexpr long kTooLongToSleep = 30'000'000'000;

void wait_asleep(Flag& flag, uint64_t target) {
  for (uint64_t value; (value = flag.load()) < target;) flag.sleep(value, kTooLongToSleep);
}

void play_ping_pong(const Rank& me, Flag* flags) {
  for (uint64_t turn = 1; turn <= 3000; ++turn) {
    if (me.rank == 0) flags[0].store(turn);
    wait_asleep(flags[1 - me.rank], turn);
    if (me.rank == 1) flags[1].store(turn);
  }
}

TEST(flag_wakes_a_sleeper_in_another_process) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT(memory != MAP_FAILED);
  Flag* flags = new (memory) Flag[2];
  on_processes(2, [&](Rank& me) { play_ping_pong(me, flags); });
  munmap(memory, 4096);
}

TEST(flag_wakes_a_sleeper_in_another_thread) {
  Flag flags[2];
  on_threads(2, [&](Rank& me) { play_ping_pong(me, flags); });
}

TEST(flag_wakes_all_sleepers) {
  Flag start, echoes[4];
  on_threads(5, [&](Rank& me) {
    for (uint64_t turn = 1; turn <= 300; ++turn) {
      if (me.rank == 4) {
        start.store(turn);
        for (Flag& flag : echoes) wait_asleep(flag, turn);
      } else {
        wait_asleep(start, turn);
        echoes[me.rank].store(turn);
      }
    }
  });
}

TEST(flag_sleep_ends_by_itself) {
  Flag flag;
  flag.store(5);
  const auto start = std::chrono::steady_clock::now();
  flag.sleep(4, kTooLongToSleep);  // the value is another one already
  flag.sleep(5, 10'000'000);       // 10 ms
  EXPECT(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  EXPECT(flag.reached(5));
  EXPECT(!flag.reached(6));
}

}  // namespace
}  // namespace ringar::test
