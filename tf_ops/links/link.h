// A link: messages between the ranks of the job, whatever carries them.
//
// A link starts transfers and tells when they are done; it makes progress only in progress().
// Messages between two ranks with the same tag arrive in the order in which they were sent, and a
// receive takes the next one. Any thread may use a link at any time. A link may have several
// streams to a rank, where a network gives each stream a part of its rate only: those of messages
// with tags of their own (`apart`).
//
// The memory of a transfer that was started must stay until it is done, and after an error for as
// long as the link exists: the network may still use it.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/status.h"

namespace ringar {

// A transfer that was started and is not done.
struct OpenTransfer {
  bool receives;
  int peer;  // or Link::kAnyone
  int tag;
  size_t bytes;
  int64_t moved;   // bytes, so far; -1: the link cannot tell
  double seconds;  // since it was started
};

class Link {
 public:
  static constexpr int kAnyone = -1;
  // How long a message is that is received into so many bytes.
  enum class Length { kExact, kAtMost };

  // The tag of messages that may take another stream than those with `tag`.
  static constexpr int apart(int tag) { return tag + kApart; }
  static constexpr bool is_apart(int tag) { return tag >= kApart; }

  virtual ~Link() = default;

  // `handle` stands for the transfer until poll() has said that it is done, or has failed: also if
  // it could not begin. An error is one of the link as a whole.
  virtual Status send(int to, int tag, const std::byte* data, size_t bytes, int* handle) = 0;
  // `from` may be kAnyone. A message of another length is an error.
  virtual Status receive(int from, int tag, std::byte* data, size_t bytes, Length length,
                         int* handle) = 0;
  // Looks after all transfers at once.
  virtual Status progress() = 0;
  // Sleeps until progress() may find something, and for at most so many seconds. A link that cannot
  // tell sleeps for all of them.
  virtual void sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  // Closes the streams of messages `apart`, which are rare from now on. The ranks have received all
  // of them.
  virtual void close_streams() {}
  // The state of a transfer after progress(); `from`: the sender of a received message.
  virtual Status poll(int handle, bool* done, int* from = nullptr) = 0;
  // For the error of a rank that has waited for too long.
  virtual std::vector<OpenTransfer> open_transfers() { return {}; }

 private:
  static constexpr int kApart = 1 << 16;  // beyond MPI's tags
};

// What each link library exports, as `ringar_open_link`: `communicator` points to an MPI_Comm of
// the library's MPI, which must stay while the link exists. Null, and why, if it cannot be used.
using OpenLink = Link* (*)(void* communicator, char* why, size_t why_bytes);

}  // namespace ringar
