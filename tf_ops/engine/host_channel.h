// Messages between two ranks of a host, through the arena.
//
// For each ordered pair of ranks there are two boxes, as large as the messages in them, and a line:
//
//     sender      box[0] = a, sent = 1 | box[1] = b, sent = 2 | wait for taken >= 1 | box[0] = c
//     ... receiver    wait for sent >= 1 | read box[0], taken = 1 | wait for sent >= 2 | ...
//
// A message is copied into a box as a whole, and out of it as a whole: the two ranks need not be
// there at the same time, and a rank is done with a message before the other one has begun.
//
// Each rank has a bell, a flag that all others advance when they have done something that it may
// wait for. It sleeps on that one flag, whatever it waits for.
//
// What the messages of a generation take of the arena (arena.h):
//
//     0                   a page per rank: its bell
//     size pages          the lines, by sender and receiver
//     64 GiB              the boxes, in as many parts as there are ranks: each sender's
//
// A box that is too small is replaced by one that is at least twice as large, at another place, and
// its pages are given back. Addresses are plenty; pages are there up to the longest message.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/arena.h"
#include "engine/channel.h"
#include "engine/flag.h"

namespace ringar {

// Where this rank keeps what it sends, to whomever.
class BoxRoom {
 public:
  BoxRoom(int place, int size);
  // Room for `bytes`, a number of pages; false if there is none.
  bool take(uint64_t bytes, uint64_t* offset);
  uint64_t bytes() const { return end_ - begin_; }

 private:
  const uint64_t begin_, end_;
  std::mutex mutex_;
  uint64_t next_;
};

// A rank's bell in this process; null without memory.
class Bell {
 public:
  Bell(Arena& arena, int place);
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  Flag* flag() const { return flag_; }

 private:
  Arena& arena_;
  Flag* flag_;
};

// One end of a pair, by places in the arena.
struct HostEnd {
  Arena* arena;
  int size;  // ranks of this host
  int from, to;
  int from_rank, to_rank;  // the same of the job
};

std::unique_ptr<Channel> open_to_send(const HostEnd& end, BoxRoom& room);
std::unique_ptr<Channel> open_to_receive(const HostEnd& end);

}  // namespace ringar
