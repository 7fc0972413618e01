// Where the ranks of a communicator meet: memory that all of them map.
//
// The memory has no name: who invites the others keeps it open, and they open it by the number of
// that process. So nothing stays behind, however processes end.
//
// It has a board that all read, and a channel for each ordered pair of ranks: two slots of 32 KiB,
// and how many chunks have been written to them and read from them. Only pages that are used take
// memory.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace standin {

constexpr int kMostRanks = 64;

struct Channel {
  static constexpr size_t kSlot = 32 * 1024 - 128;

  alignas(64) std::atomic<uint64_t> writes;
  alignas(64) std::atomic<uint64_t> reads;
  uint32_t bytes[2];
  unsigned char slots[2][kSlot];
};
static_assert(sizeof(Channel) <= 64 * 1024);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Ends with its process. To be sent to other processes.
struct Invitation {
  int process, file;
  uint64_t inode;  // tells it from a later one of the same number
};

// False: there are no files left.
bool invite(Invitation* invitation);
void withdraw(const Invitation& invitation);

class Meeting {
 public:
  struct Board {
    int32_t ranks;  // 0: nobody has come
    struct {
      bool is_there, is_known, shares;
      int32_t host, gpu, process;
    } places[kMostRanks];
    std::atomic<int32_t> arrived, finalized;
    std::atomic<bool> is_withdrawn;  // the invitation
    std::atomic<int32_t> error;      // of all ranks; -1: its text is being written
    char text[1024];
  };

  // Does not wait for the others. Null, and why, if that rank cannot come; without a reason if who
  // invited it has gone.
  static std::shared_ptr<Meeting> come(const Invitation& invitation, int ranks, int rank,
                                       int device, std::string* why);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  void operator=(const Meeting&) = delete;

  bool is_complete() const { return board().arrived == ranks; }
  // Why these ranks cannot work together; "" if they can.
  std::string objection() const;
  Board& board() const { return *static_cast<Board*>(memory_); }
  Channel& channel(int from, int to) const;

  // A rank whose process has ended; -1: there is none.
  int dead_rank() const;

  // The first error of a rank is that of all.
  void fail(int code, const std::string& text);

  const int ranks;

 private:
  Meeting(const Invitation& invitation, int ranks, void* memory)
      : ranks(ranks), invitation_(invitation), memory_(memory) {}

  const Invitation invitation_;
  void* const memory_;
};

}  // namespace standin
