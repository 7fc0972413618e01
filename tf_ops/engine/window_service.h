// Accesses to the parts of windows on other hosts: requests to their ranks, and replies.
//
//     rank 0    request a | request b | ...         reply a | reply b | ...
//     rank 1    (host 1)   does a | reply a | does b | reply b | ...
//
// An access is cut into pieces, of which several are under way at a time: a chunk, or as many whole
// ones as fit into a message. So a read has the same guarantees as one by a rank of that host. Each
// piece is answered when it is done, with the elements, the versions, or an error.
//
// Every rank with a window serves it in a thread of the engine, and so does whoever waits for a
// reply. Pieces of rows have as many rows as fit into a message, with their numbers in front; a row
// that does not fit is cut. Pieces travel through buffers of the service: no transfer touches
// memory of the user.

#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/link_channel.h"
#include "engine/window_part.h"
#include "engine/world.h"

namespace ringar {

// The accesses that a rank offers to ranks of other hosts.
class ServedWindow {
 public:
  virtual Status serve(const WindowAccess& access) = 0;
  virtual Status serve(const WindowRows& access) = 0;

 protected:
  ~ServedWindow() = default;
};

class WindowService {
 public:
  WindowService(const World& world, int generation);
  ~WindowService();
  WindowService(const WindowService&) = delete;
  WindowService& operator=(const WindowService&) = delete;

  // A number for a window that is not there yet.
  int64_t draw_number();
  // Requests for this number are those for the window, until remove().
  void add(int64_t number, ServedWindow& window, const WindowLayout& layout);
  void remove(int64_t number);

  // Of the part of a rank of the job on another host, which has this number there. Any thread.
  Status access(int rank, int64_t number, const WindowLayout& layout, const WindowAccess& access);
  Status access(int rank, int64_t number, const WindowLayout& layout, const WindowRows& access);

  // Returns when no thread is at work here any longer. Accesses under way end with an error.
  void stop();

 private:
  struct Header;
  struct Served {
    ServedWindow* window;
    WindowLayout layout;
  };
  // Memory with the transfer that reads or writes it.
  struct Transfer {
    LinkMemory::Piece memory;
    int handle = -1;
  };
  // An access of this rank, and its pieces that were not answered yet.
  struct Call {
    Status status;
    int under_way = 0;
  };
  struct Pending {
    Call* call;
    std::byte* array;  // for elements of the reply
    int64_t* versions;
    size_t chunks;
  };
  struct Part {
    const void* begin;
    size_t bytes;
  };

  // These are called with the lock held.
  Status drive(bool* moved);
  Status expect(Transfer& transfer, int from, int tag);
  std::byte* make(size_t bytes);
  Status send(int to, int tag, const Header& header);
  Status contact(int rank);
  Status ask(int rank, int64_t number, const WindowLayout& layout, const WindowAccess& piece,
             Call* call);
  Status ask(int rank, int64_t number, const WindowLayout& layout, const WindowRows& piece,
             Call* call);
  Status post(int rank, Header header, const std::vector<Part>& body, const Pending& pending);
  template <typename Any>
  Status ask_when_few(int rank, int64_t number, const WindowLayout& layout, const Any& piece,
                      Call* call);
  Status finish(int rank, Call& call, Status status);
  static Status serve(const Served& served, const Header& header, const std::byte* message,
                      std::byte* reply, int64_t* versions);
  Status answer(int from, const std::byte* message);
  void take_reply(const std::byte* message);
  void take_from(int rank, Transfer& reply, bool* moved);

  Status loss(int rank, double seconds);
  Status wait(int rank, Call& call, int at_most);
  void thread_main();

  const World& world_;
  const int generation_;
  std::mutex mutex_;
  LinkMemory memory_;
  std::map<int64_t, Served> windows_;
  std::vector<Transfer> requests_;                // expected, of anyone
  std::map<int, std::vector<Transfer>> replies_;  // expected, by rank
  std::map<int, Status> losses_;
  std::list<Transfer> sending_;
  std::map<uint64_t, Pending> pending_;
  uint64_t next_piece_ = 0;
  int64_t next_number_ = 1;
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace ringar
