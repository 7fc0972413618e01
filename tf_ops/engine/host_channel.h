// Messages between two ranks of a host, through the shared segment.
//
// Each message lies in a slot. A stream, of an ordered pair of ranks and a tag, has a line, and at
// most two slots at a time:
//
//     sender      slot[0] = a, sent = 1 | slot[1] = b, sent = 2 | wait for taken >= 1 | slot[0] = c
//     ... receiver    wait for sent >= 1 | read slot[0], taken = 1 | wait for sent >= 2 | ...
//
// A message is copied into a slot as a whole, and out of it as a whole: the two ranks need not be
// there at the same time, and a rank is done with a message before the other one has begun.
//
// Each rank has a doorbell, a flag that all others advance when they have done something that it
// may wait for. It sleeps on that one flag, whatever it waits for.
//
// What the messages of a generation take of the shared segment (shared_segment.h):
//
//     0                   a page per rank: its doorbell
//     size pages          the lines, a page each, by tag, sender and receiver
//     behind them         the slots, in as many parts as there are ranks: each sender's
//
// A slot whose message was taken is free for the next one, of whichever stream. If none is large
// enough, one is replaced by one that is at least twice as large, at another place, and its pages
// are given back. Addresses are plenty; of pages there are as many as the longest messages took
// that were under way at a time. Those that the last messages did not need
// are given back, too. A line is there, once it is used, as long as the generation.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "engine/channel.h"
#include "engine/flag.h"
#include "engine/shared_segment.h"

namespace ringar {

// The memory of the messages that this rank sends, to any receiver.
class SlotAllocator {
 public:
  struct Slot {
    uint64_t offset = 0;
    size_t bytes = 0;     // addresses, and
    size_t provided = 0;  // pages
    std::byte* memory = nullptr;
    uint64_t needed_at = 0;  // the number of the last message that needed the pages
    // It is free when the line has counted so many messages as taken.
    const std::atomic<uint64_t>* taken_count = nullptr;
    std::atomic<uint64_t> until{0};

    bool is_free() const { return !taken_count || taken_count->load() >= until.load(); }
  };
  static constexpr uint64_t kFilling = UINT64_MAX;  // until it is known

  SlotAllocator(SharedSegment& segment, int place, int size);
  ~SlotAllocator();
  // A slot for a message: `slot`, if that is free and large enough, or another one.
  Status take(size_t bytes, const std::atomic<uint64_t>& taken_count, Slot** slot);

 private:
  Status replace(Slot& slot, size_t bytes);
  void discard_idle();

  SharedSegment& segment_;
  const uint64_t begin_, end_;
  std::mutex mutex_;
  std::deque<Slot> slots_;
  uint64_t next_;
  uint64_t takes_ = 0;
};

// A rank's doorbell in this process; null without memory.
class Doorbell {
 public:
  Doorbell(SharedSegment& segment, int place, int size);
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  Flag* flag() const { return flag_; }

 private:
  SharedSegment& segment_;
  Flag* flag_;
};

// One end of a stream, by places in the shared segment.
struct HostEnd {
  SharedSegment* segment;
  int size;  // ranks of this host
  int from, to;
  int from_rank, to_rank;  // the same of the job
  int tag;
};

std::unique_ptr<Channel> open_to_send(const HostEnd& end, SlotAllocator& allocator);
std::unique_ptr<Channel> open_to_receive(const HostEnd& end);

}  // namespace ringar
