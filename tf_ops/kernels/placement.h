// The memory of an op's allreduce: in place, or copies of its inputs in the output pool.
//
// Making a copy takes the time of a step. It pays where the cores are busy with a backward pass: in
// place, the ranks wait for each other in every block, each time until a scheduler gives them a
// core; copies, which all ranks can read, take two such waits in all. How long each way takes is
// measured, call by call, and the copy is made where it is several times faster.
//
// Ranks may choose differently: in every call each offers its arrays to the others.

#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

namespace ringar {

class Placement {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // Of the next call. Each way is tried in turn at first, and the other one now and then.
  bool copies() {
    const size_t call = calls_++;
    if (call < 2 * kSamples) return call % 2 == 1;
    const bool faster = median(in_place_) > kGain * median(copied_);
    return call % kTryOther == 0 ? !faster : faster;
  }

  void took(Duration time, bool copied) {
    Samples& samples = copied ? copied_ : in_place_;
    std::rotate(samples.begin(), samples.begin() + 1, samples.end());
    samples.back() = time;
  }

 private:
  static constexpr size_t kSamples = 3;  // the median of three is not moved by one rank's pause
  static constexpr size_t kTryOther = 64;
  static constexpr int kGain = 4;
  using Samples = std::array<Duration, kSamples>;

  static Duration median(Samples samples) {
    std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
    return samples[kSamples / 2];
  }

  size_t calls_ = 0;
  Samples in_place_{}, copied_{};
};

}  // namespace ringar
