// One end of a stream of messages, of which two may be under way, whatever carries them.
// PointToPoint ensures that one thread at a time uses a channel.
//
// The memory of messages is shared by the channels of a rank: a stream holds its messages under way
// alone, and received ones make room for others. Memory that the last messages did not need is
// freed.

#pragma once

#include "engine/request.h"
#include "engine/status.h"

namespace ringar {

// Of a stream.
constexpr int kMessagesUnderWay = 2;

class Channel {
 public:
  virtual ~Channel() = default;

  // Goes on with a request, the same one until it is done or has failed. RINGAR_MISMATCH leaves
  // both ends in step: the message that was refused is gone, or the one to be sent was not sent.
  virtual Status advance(Request& request, bool* done) = 0;

  // Messages that have been sent or received, and so the number of the next one.
  virtual uint64_t number() const = 0;

  // Whether this end has to poll for news; otherwise a doorbell tells.
  virtual bool polls() const { return false; }
  // Goes on with transfers of requests that are done. True as long as there are some.
  virtual bool tend() { return false; }
  // Frees the memory of messages to come, which nobody will receive. Any thread.
  virtual void forget() {}
  // The seconds that a message may still be under way after its sender has left.
  virtual double grace() const { return 0; }
};

// Memory is idle when none of so many messages needed it: they took other memory, or less than a
// quarter of it. A little is kept anyway.
constexpr uint64_t kTakesOfIdle = 16;
constexpr size_t kLeastIdleBytes = size_t{1} << 20;
constexpr bool needs(size_t message_bytes, size_t bytes) {
  return message_bytes >= bytes / 4;
}

// The smallest free memory of at least `bytes`, otherwise the largest; null if none is free.
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
