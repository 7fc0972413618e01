// Weighted averages: each rank counts with its share, and a vector in front of the arrays says so.
//
// An average of gradients over ranks is the gradient of the global batch only if all ranks have
// equally many examples. An allreduce whose spec has `shares` is right for any numbers. Its first
// array, the control vector, has three elements:
//
//   in    the normalizer N of this rank (the rows of its batch) or -1 for "as all others",
//         1 if the rank takes part without data (it is idle), 1 if a training step begins here
//   out   the weight of this rank in the average, the number of idle ranks, the number of ranks
//         that ask all ranks to stop
//
// A reference, the largest N of the first collective of the same key, turns N into a share
// r = N / reference. It is 1 for a full batch, and then nothing is computed. Otherwise the rank
// multiplies its arrays by r before the exchange. The vector itself carries 1 - r, so that its sum
// is exactly 0 where all shares are 1; else the result is multiplied by n / (sum of r).
//
// Numbers of two bytes hold neither 257 rows (bfloat16) nor 70,000 (float16). With arrays of such a
// dtype the control vector has the bytes of three floats, which ranks exchange by themselves before
// the arrays; these are multiplied once, by the weight r * n / (sum of r).
//
// The key 0 means a plain sum, whose ranks have no shares. A rank that is idle contributes zeros,
// whatever its arrays hold.

#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "engine/communicator.h"

namespace ringar {

class Shares {
 public:
  static constexpr int64_t kControlElements = 3;

  // Runs an allreduce whose spec has `shares`.
  Status run(Communicator& set, Request& request);
  // Forgets what was asked; the next collective of each key agrees on a reference anew. All ranks
  // do so at the same place.
  void begin_training();

  // Whether this rank asks all ranks to stop, and whether any rank was seen to ask.
  std::atomic<bool> asks_to_stop{false}, stop_was_seen{false};
  // The training steps so far.
  std::atomic<int64_t> steps{0};

 private:
  struct Control {
    double share, idle, mark;
  };
  // What the vector carries between ranks: 1 - r, whether this rank is idle, whether it asks to
  // stop. Then their sums.
  using Numbers = std::array<double, kControlElements>;
  struct Answer {
    double factor;  // n / (sum of r)
    double idle, stops;
  };
  Status agree(Communicator& set, const Request& request, double share, double* reference);
  Status own_share(Communicator& set, const Request& request, const Control& control,
                   double* share);

  std::mutex mutex_;
  std::map<std::pair<int32_t, int32_t>, double> references_;  // by process set and key
};

}  // namespace ringar
