// The way of the messages of one stream, seen from one of its ends: two of them may be on their
// way, whoever carries them. PointToPoint sees to it that one thread at a time uses a channel.
//
// The memory of messages is shared by the channels of a rank: a stream holds as much as there is
// under way, and what was taken makes room for any other. What the last messages did not need is
// given back.

#pragma once

#include "engine/request.h"
#include "engine/status.h"

namespace ringar {

class Channel {
 public:
  virtual ~Channel() = default;

  // Goes on with a request, the same one until it is done or has failed. RINGAR_MISMATCH leaves
  // both ends in step: the message that was refused is gone, or the one to be sent was not sent.
  virtual Status advance(Request& request, bool* done) = 0;

  // Messages that have been sent or received, and so the number of the next one.
  virtual uint64_t number() const = 0;

  // Whether this end has to look by itself whether there is news; otherwise a doorbell tells.
  virtual bool polls() const { return false; }
  // Goes on with transfers of requests that are done. True as long as there are some.
  virtual bool tend() { return false; }
  // Nobody will receive what comes: gives back the memory that it takes. Any thread.
  virtual void forget() {}
  // For how many seconds what a rank has sent may be on its way after that rank has left.
  virtual double grace() const { return 0; }
};

// Memory is idle when it was of use to none of so many messages: they took other memory, or less
// than a quarter of it. A little is kept anyway.
constexpr uint64_t kTakesOfIdle = 16;
constexpr size_t kLeastIdleBytes = size_t{1} << 20;
constexpr bool needs(size_t message_bytes, size_t bytes) {
  return message_bytes >= bytes / 4;
}

// Of those that are free, the smallest with so many `bytes`, or else the largest; null if none is.
template <typename Memories, typename IsFree>
auto* best_fit(Memories& memories, size_t bytes, IsFree is_free) {
  typename Memories::value_type* best = nullptr;
  for (auto& memory : memories) {
    if (!is_free(memory)) continue;
    const bool fits = memory.bytes >= bytes, best_fits = best && best->bytes >= bytes;
    if (!best || fits > best_fits || (fits == best_fits && (memory.bytes < best->bytes) == fits))
      best = &memory;
  }
  return best;
}

}  // namespace ringar
