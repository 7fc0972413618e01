// The memory that the ranks of one host share, and who of them is still alive.
//
// One file without a name (memfd), inherited from the launcher:
//
//   0           one record per rank: has it joined, left, given up (and why)
//   16 TiB * g  the process sets of generation g, one after the other, from a quarter on outputs
//               (output_pool.h), then windows (window_memory.h), and from the middle on messages
//               (host_channel.h); a generation is the time from ringar_init to ringar_shutdown, so
//               that init after shutdown starts clean
//
// Where the size of files is limited (RLIMIT_FSIZE), four generations share what the limit allows,
// and there are no more.
//
// The file is sparse. Each rank reserves the pages that it writes before anybody touches them, so
// they lie on its NUMA node. Where /dev/shm is too small, the kernel would kill (SIGBUS) the first
// rank that touches a page without memory; a reservation fails, and all ranks can say why.
//
// A rank lives as long as its lock is held (rank_lock.h). A stopped process keeps its lock: for
// that there is the deadline.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/output_pool.h"
#include "engine/rank_lock.h"
#include "engine/status.h"

namespace ringar {

// A range of a generation's memory.
struct Extent {
  uint64_t offset = 0;
  size_t bytes = 0;
};

// Where a generation has what.
struct Layout {
  static constexpr uint64_t kUnlimited = uint64_t{1} << 44;
  static constexpr uint32_t kLimitedGenerations = 4;

  uint64_t generation = kUnlimited;  // bytes of each

  // For a file of at most so many bytes, which begins with `records` others.
  static Layout of(uint64_t limit, uint64_t records);
  bool is_limited() const { return generation < kUnlimited; }

  uint64_t outputs() const { return generation / 4; }
  uint64_t windows() const { return generation / 8 * 3; }
  uint64_t messages() const { return generation / 2; }
  // The end of the region that an offset lies in.
  uint64_t end_of_region(uint64_t offset) const;
};

class SharedSegment {
 public:
  // `rank` of `size` on this host; `names` are their ranks in the job, if they have others.
  // While it joins, news on `news_fd` (0: none) say that a rank will not come.
  SharedSegment(int fd, int rank, int size, std::vector<int> names = {}, int news_fd = 0);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Makes this rank known and waits until all ranks of the job are. `tuning` must be equal on all:
  // the memory's layout depends on it. `extent` is the range that this rank needs from the start;
  // without it on one rank, all fail. `choice`, if there is one, becomes that of rank 0. With
  // `pool`, on all ranks, it makes a pool of outputs.
  Status join(double timeout_seconds, uint64_t tuning = 0, const Extent& extent = {},
              int64_t* choice = nullptr, bool pool = false);

  // Tells the others that this rank leaves, or gives up and why. Any thread may give up.
  void leave();
  void give_up(const std::string& why);

  // Why `rank` will never answer, or "".
  std::string trouble(int rank) const;
  // The same, but of a rank that has died or given up: one that leaves has done its part.
  std::string loss(int rank) const;
  // The same, of a rank that has ended: one that has given up may still live.
  std::string absence(int rank) const;
  // The same, of a rank that has left; costs no more than a look.
  std::string departure(int rank) const;
  // The same, of a rank that has died without a word.
  std::string death(int rank) const;

  // How many processors the ranks may use together, as they have told when they joined.
  int processors() const;

  const Layout& layout() const { return layout_; }

  // Null where the ranks have none.
  const std::shared_ptr<OutputPool>& outputs() const { return outputs_; }

  // Pages, which are there from then on; false without memory, with errno. Those that exist keep
  // what they hold.
  bool provide(uint64_t offset, size_t bytes);
  // The text of an error for the errno: how much is free, and what to do.
  std::string shortage(int error) const;
  // Provides this rank's part of what `ranks` ranks use, or says what they need.
  Status reserve(const Extent& extent, int ranks);
  // Maps memory; null without addresses. Only pages that are provided may be touched.
  std::byte* map(uint64_t offset, size_t bytes);
  void unmap(std::byte* memory, size_t bytes);
  // Gives the pages back to the system; they read as zero afterwards.
  void discard(uint64_t offset, size_t bytes);

 private:
  struct Record;

  static size_t bytes_of_records(int size);
  uint64_t base() const;
  Status check_generation() const;
  bool extend(uint64_t end) const;
  bool is_alive(int rank) const;
  Status take_lock();
  Status keep_file();
  Status map_records();
  std::string absent_ranks() const;
  bool has_news() const;
  Status compare_starts() const;
  size_t make_pool();
  void compare_pools();
  uint64_t file_system_bytes() const;
  void forget_last_generation();
  Status too_late(const std::string& absentees, double timeout_seconds) const;

  std::string name(int rank) const { return std::to_string(names_[static_cast<size_t>(rank)]); }

  int fd_;  // the caller's, and its own once it has joined
  bool owns_file_ = false;
  const int news_fd_;
  int rank_;
  int size_;
  std::vector<int> names_;
  const Layout layout_;
  uint32_t generation_ = 0;
  RankLock lock_;
  Record* records_ = nullptr;  // null until this process has the lock: they are another's
  std::mutex giving_up_;
  std::shared_ptr<OutputPool> outputs_;
};

}  // namespace ringar
