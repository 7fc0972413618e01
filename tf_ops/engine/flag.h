// A counter in shared memory that one rank advances and the others wait for.
//
// No locks: the writer stores, readers poll for a moment and then sleep in the kernel (futex). The
// writer makes a system call only if somebody sleeps.

#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace ringar {

class Flag {
 public:
  uint64_t load() const { return value_.load(std::memory_order_acquire); }
  bool reached(uint64_t target) const { return load() >= target; }

  // The store and the look at sleepers_ must not swap, or a reader that goes to sleep in between
  // is never woken: both are sequentially consistent, here and in sleep().
  void store(uint64_t value) {
    value_.store(value);
    if (sleepers_.load() != 0) futex(FUTEX_WAKE, INT_MAX, nullptr);
  }

  // For one that several ranks advance.
  void add() {
    value_.fetch_add(1);
    if (sleepers_.load() != 0) futex(FUTEX_WAKE, INT_MAX, nullptr);
  }

  // Sleeps until the value is no longer `snapshot`, a wake-up, or the timeout; spurious returns
  // happen.
  void sleep(uint64_t snapshot, long timeout_ns) {
    sleepers_.fetch_add(1);
    if (value_.load() == snapshot) {
      const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
      futex(FUTEX_WAIT, static_cast<uint32_t>(snapshot), &timeout);
    }
    sleepers_.fetch_sub(1);
  }

 private:
  // The kernel compares 32 bits: the low half, which comes first on the machines we run on.
  void futex(int operation, uint32_t value, const timespec* timeout) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), operation, value, timeout, nullptr, 0);
  }

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "flags are shared between processes");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the futex is the low half of a flag");

}  // namespace ringar
