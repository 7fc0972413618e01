// Messages that have come, and receives that wait for one: each message finds the first receive
// that wants it, and is read into its memory. One that nobody waits for yet is kept.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "engine/status.h"
#include "links/link.h"

namespace ringar {

// The transfers of a link by handle, and how each has ended.
class Transfers {
 public:
  // Of a link: `moved` and `seconds` are filled in by open().
  int begin(const OpenTransfer& transfer);
  void moved(int handle, size_t bytes);  // so far
  std::vector<OpenTransfer> open() const;
  void finish(int handle, int from = 0);
  void fail(int handle, Status why);
  // As Link::poll.
  Status poll(int handle, bool* done, int* from);

 private:
  using Clock = std::chrono::steady_clock;
  struct Transfer {
    OpenTransfer description{};
    bool is_open = false, done = false;
    Clock::time_point since = Clock::now();
    int from = 0;
    Status failure;
  };
  std::vector<Transfer> transfers_;
  std::vector<int> free_;
};

class Inbox {
 public:
  explicit Inbox(Transfers& transfers) : transfers_(transfers) {}

  struct Receive {
    int from, tag;
    std::byte* data;
    size_t bytes;
    Link::Length length;
    int handle;
  };
  // What a message that begins to come has to be read into.
  struct Message {
    int from, tag;
    size_t bytes;
    std::byte* data = nullptr;
    int handle = -1;  // of its receive; -1: nobody's yet
    std::vector<std::byte> storage{};
  };

  void receive(const Receive& receive);
  Message begin(int from, int tag, size_t bytes);
  void end(Message message);
  // So many bytes of a message have come.
  void moved(const Message& message, size_t bytes) {
    if (message.handle >= 0) transfers_.moved(message.handle, bytes);
  }
  // Nothing more will come from a rank. What has come may still be received.
  void lose(int from, const Status& why);

 private:
  using Receives = std::list<Receive>;
  Receives::iterator first_that_wants(int from, int tag);
  static bool wants(const Receive& receive, int from, int tag);
  static bool fits(const Receive& receive, size_t bytes);
  void refuse(const Receive& receive, int from, size_t bytes);
  void deliver(const Receive& receive, const Message& message);

  Transfers& transfers_;
  Receives posted_;
  std::list<Message> arrived_;
  std::map<int, Status> losses_;
};

}  // namespace ringar
