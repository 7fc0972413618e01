// Recursive doubling: combines the data of all ranks of a group in ceil(log2 n) messages.
//
// In round k the rank at place p exchanges messages with the one at place p xor 2^k. Where n is no
// power of two, 2^m + e, the first 2e ranks pair up before: the even ones hand over to their odd
// neighbours and are told at the end, which makes m + 2 messages one after the other.
//
// A message says whether all ranks whom the sender has heard of are doing the same (a digest), and
// carries their partial result: an allreduce of K bytes sends K bytes in every round, m K in all,
// where a ring sends 2 (n-1)/n K, but in m messages one after the other instead of 2 (n-1) (Thakur,
// Rabenseifner and Gropp 2005). It wins where latency counts: up to some ten kilobytes.
//
// Both of a pair compute lower rank + higher rank, so all ranks hold the same bits.

#pragma once

#include <cstddef>

#include "engine/inter_node_communicator.h"
#include "engine/ways_to_run.h"

namespace ringar {

class PartialResult {
 public:
  virtual ~PartialResult() = default;
  virtual size_t bytes() const = 0;  // at most kMaxPartialBytes
  // Combines the partial results of lower and of higher ranks in `to`, which is one of the two.
  virtual void combine(const std::byte* low, const std::byte* high, std::byte* to) = 0;
};

// A consistency check, and a partial result if there is one.
class Message {
 public:
  static constexpr size_t kMaxBytes = sizeof(ConsistencyCheck) + kMaxPartialBytes;

  explicit Message(std::byte* memory) : memory_(memory) {}
  ConsistencyCheck& check() { return *reinterpret_cast<ConsistencyCheck*>(memory_); }
  std::byte* partial() { return memory_ + sizeof(ConsistencyCheck); }
  std::byte* memory() { return memory_; }

 private:
  std::byte* memory_;
};

class RecursiveDoubling {
 public:
  static constexpr int kChannel = InterNodeCommunicator::kChannels - 1;  // rings use the others

  // `result` may be null. `message` has this rank's data, and at the end the combined data;
  // messages are received into `partner_message`. Both have Message::kMaxBytes.
  RecursiveDoubling(InterNodeCommunicator& group, PartialResult* result, Message message,
                    Message partner_message, WaitPolicy policy = WaitPolicy::kEager)
      : group_(group),
        result_(result),
        message_(message),
        partner_message_(partner_message),
        policy_(policy) {}

  Status run();

 private:
  size_t bytes() const { return sizeof(ConsistencyCheck) + (result_ ? result_->bytes() : 0); }
  Status exchange(int partner);
  Status hand_over(int partner);
  Status transfer(int partner, bool send, bool receive);
  void absorb(int partner);

  InterNodeCommunicator& group_;
  PartialResult* const result_;
  Message message_, partner_message_;
  const WaitPolicy policy_;
};

}  // namespace ringar
