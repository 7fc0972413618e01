// Messages between two ranks of a host, through the arena.
//
// Each message lies in a box. A stream, of an ordered pair of ranks and a tag, has a line, and at
// most two boxes at a time:
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
//     size pages          the lines, a page each, by tag, sender and receiver
//     behind them         the boxes, in as many parts as there are ranks: each sender's
//
// A box whose message was taken is free for the next one, of whichever stream. If none is large
// enough, one is replaced by one that is at least twice as large, at another place, and its pages
// are given back. Addresses are plenty; of pages there are as many as the longest messages took
// that were under way at a time. A line is there, once it is used, as long as the generation.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "engine/arena.h"
#include "engine/channel.h"
#include "engine/flag.h"

namespace ringar {

// Where this rank keeps what it sends, to whomever.
class BoxRoom {
 public:
  struct Box {
    uint64_t offset = 0;
    size_t bytes = 0;     // addresses, and
    size_t provided = 0;  // pages
    std::byte* memory = nullptr;
    // It is free when the line has counted so many messages as taken.
    const std::atomic<uint64_t>* taken = nullptr;
    std::atomic<uint64_t> until{0};

    bool is_free() const { return !taken || taken->load() >= until.load(); }
  };
  static constexpr uint64_t kFilling = UINT64_MAX;  // until it is known

  BoxRoom(Arena& arena, int place, int size);
  ~BoxRoom();
  // A box for a message: `box`, if that is free and large enough, or another one.
  Status take(size_t bytes, const std::atomic<uint64_t>& taken, Box** box);

 private:
  Status replace(Box& box, size_t bytes);

  Arena& arena_;
  const uint64_t begin_, end_;
  std::mutex mutex_;
  std::deque<Box> boxes_;
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

// One end of a stream, by places in the arena.
struct HostEnd {
  Arena* arena;
  int size;  // ranks of this host
  int from, to;
  int from_rank, to_rank;  // the same of the job
  int tag;
};

std::unique_ptr<Channel> open_to_send(const HostEnd& end, BoxRoom& room);
std::unique_ptr<Channel> open_to_receive(const HostEnd& end);

}  // namespace ringar
