#include "links/pending_call.h"

#include <algorithm>
#include <atomic>

#include "engine/timeline.h"

namespace ringar {

// Each thread writes to a slot of its own, one after the other: calls are too frequent for a lock.
struct CallSlot {
  std::atomic<bool> is_taken{false};
  std::atomic<const char*> name{nullptr};
  std::atomic<int64_t> begin{0};  // 0: no call is under way
};

namespace {

constexpr int kSlots = 64;
CallSlot slots[kSlots];

// The slot of a thread; null where threads are more than slots: their calls are not noted.
struct ThreadSlot {
  CallSlot* slot = nullptr;
  bool ignores = false;

  ThreadSlot() {
    for (CallSlot& candidate : slots) {
      bool is_taken = false;
      if (!candidate.is_taken.compare_exchange_strong(is_taken, true)) continue;
      slot = &candidate;
      return;
    }
  }
  ~ThreadSlot() {
    if (slot) slot->is_taken.store(false);
  }
};

thread_local ThreadSlot place;

}  // namespace

PendingCall::PendingCall(const char* name) : slot_(place.ignores ? nullptr : place.slot) {
  if (!slot_) return;
  slot_->name.store(name, std::memory_order_relaxed);
  slot_->begin.store(monotonic_ns(), std::memory_order_release);
}

PendingCall::~PendingCall() {
  if (slot_) slot_->begin.store(0, std::memory_order_release);
}

void PendingCall::ignore_on_this_thread() {
  place.ignores = true;
}

LongestCall longest_call() {
  LongestCall longest;
  const int64_t now = monotonic_ns();
  for (const CallSlot& slot : slots) {
    const int64_t begin = slot.begin.load(std::memory_order_acquire);
    const double seconds = static_cast<double>(now - begin) * 1e-9;
    if (begin == 0 || (longest.name && seconds <= longest.seconds)) continue;
    longest = {slot.name.load(std::memory_order_relaxed), seconds};
  }
  return longest;
}

}  // namespace ringar
