// The way of messages from one rank to another, seen from one of its ends: two buffers, whoever
// carries them. Mail sees to it that one thread at a time uses a channel.

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

  // Whether this end has to look by itself whether there is news; otherwise a bell tells.
  virtual bool polls() const { return false; }
  // Goes on with transfers of requests that are done. True as long as there are some.
  virtual bool tend() { return false; }
  // For how many seconds what a rank has sent may be on its way after that rank has left.
  virtual double grace() const { return 0; }
};

}  // namespace ringar
