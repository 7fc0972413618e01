// What one rank sends to others and receives from them, all at once.

#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "meeting.h"

namespace standin {

class Communicator;

class Exchange {
 public:
  explicit Exchange(Communicator& communicator);

  // To another rank, after what was said before; the memory must stay until run() returns.
  void send(int to, const void* data, size_t bytes);
  // `then` looks at what has come: "", or why it is not what it should be.
  void receive(int from, void* data, size_t bytes, std::function<std::string()> then = {});
  // Whether all has been sent, taken by its receivers, and received. If not, the communicator was
  // aborted, or has an error.
  bool run();

 private:
  struct Span {
    unsigned char* data;
    size_t bytes;
    std::function<std::string()> then;
  };
  struct Peer {
    std::deque<Span> out, in;
  };

  bool push(int to);
  bool pull(int from);
  bool is_idle(int peer) const;
  std::string awaited() const;

  Communicator& communicator_;
  std::vector<Peer> peers_;
};

}  // namespace standin
