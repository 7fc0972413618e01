// Which way copies into shared memory go: by ordinary stores, or past the caches.
//
// Bytes stored past the caches must be fetched from memory, which takes readers longer than from a
// cache. So ordinary stores are the rule. But between cores that share no cache at all, as in two
// core complexes of an AMD EPYC, stores to lines that the other one has read run at 2.3 GB/s in
// whatever order, and those past the caches at 30. The cores of a virtual machine may be such
// neighbors in one minute and others in the next. So both ways are measured all the time: a few
// copies go the other way, at first and then one of 256.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ringar {

class WayOfCopies {
 public:
  // Whether the next copy goes past the caches.
  bool next_is_past_caches() {
    const bool usual = rates_[1] > kFar * rates_[0];
    const bool is_power_of_two = (copies_ & (copies_ - 1)) == 0;
    const bool other = copies_ != 0 && (is_power_of_two || copies_ % kRare == 0);
    ++copies_;
    return usual != other;
  }

  // Notes how long the copy took, in any unit. One that was interrupted hardly counts.
  void took(bool past_caches, size_t bytes, uint64_t ticks) {
    constexpr float kKept = 0.875F;
    const float rate = static_cast<float>(bytes) / static_cast<float>(ticks + 1);
    rates_[past_caches] = std::max(rate, kKept * rates_[past_caches]);
  }

 private:
  static constexpr float kFar = 4;  // so many times as fast, since readers are slower then
  static constexpr uint32_t kRare = 256;

  float rates_[2] = {};  // bytes per tick: by ordinary stores, past the caches
  uint32_t copies_ = 0;
};

}  // namespace ringar
