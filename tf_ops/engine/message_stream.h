// One end of a stream of messages: its requests, and the progress of the oldest.

#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/channel.h"
#include "engine/op_state.h"
#include "engine/request.h"
#include "engine/watchdog.h"
#include "engine/world.h"

namespace ringar {

class MessageStream {
 public:
  // Streams are numbered apart: the n-th message that is sent goes to the n-th receive.
  struct Key {
    bool sends;
    int peer;  // a rank of the job
    int tag;   // see Spec

    bool operator<(const Key& other) const {
      return std::tie(sends, peer, tag) < std::tie(other.sends, other.peer, other.tag);
    }
  };
  struct Posted {
    Request* request;
    Status* status = nullptr;  // of a caller that waits, with `done`
    bool* done = nullptr;
  };

  MessageStream(const World& world, const Key& key, std::unique_ptr<Channel> channel);

  Channel& channel() { return *channel_; }
  // Goes on with the oldest request. An error other than RINGAR_MISMATCH breaks the stream.
  Status advance(Request& request, bool* done);

  // PointToPoint's, with its lock held.
  std::deque<Posted> posted;  // the oldest first
  bool busy = false;          // a thread is at it: nobody else calls anything here

 private:
  static constexpr int kNoSet = -2;  // instead of a process set's id, in control messages

  Status keep_waiting(Request& request, bool* done);
  Signature describe(const Request& request) const;
  Status note(const Request& request, int64_t begin, const Status& status);

  const World& world_;
  const std::vector<int> peer_;
  const std::unique_ptr<Channel> channel_;
  Status broken_;
  OpState op_state_;
  std::optional<Watchdog> watchdog_;  // of the oldest, once it waits
  std::optional<double> lost_at_;
};

}  // namespace ringar
