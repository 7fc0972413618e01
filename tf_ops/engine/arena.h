// The memory that the ranks of one host share, and who of them is still alive.
//
// One file without a name (memfd), inherited from the launcher:
//
//   0           one record per rank: has it joined, left, given up (and why)
//   16 TiB * g  the process sets of generation g, one after the other, and from the middle on
//               messages (host_channel.h); a generation is the time from ringar_init to
//               ringar_shutdown, so that init after shutdown starts clean
//
// The file is sparse: only pages that were written take memory, and the rank that writes a page
// first decides on which NUMA node it lies.
//
// Liveness is a POSIX record lock, one byte per rank, far behind the data. The kernel drops it when
// the process ends, however it ends, before anybody reaps it; it needs no pid and so works across
// pid namespaces. A stopped process keeps its lock: for that there is the deadline.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/status.h"

namespace ringar {

class Arena {
 public:
  // Where messages lie in a generation, up to its end.
  static constexpr uint64_t kGenerationBytes = uint64_t{1} << 44;
  static constexpr uint64_t kMessages = kGenerationBytes / 2;

  // `rank` of `size` on this host; `names` are their ranks in the job, if they have others.
  Arena(int fd, int rank, int size, std::vector<int> names = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes this rank known and waits until all ranks of the job are. `tuning` must be equal on all:
  // it stands for how they lay out the memory.
  Status join(double timeout_seconds, uint64_t tuning = 0);

  // What the others will be told of this rank from now on. Any thread may give up.
  void leave();
  void give_up(const std::string& why);

  // Why `rank` will never answer, or "".
  std::string trouble(int rank) const;
  // The same, but of a rank that has died or given up: one that leaves has done its part.
  std::string loss(int rank) const;
  // The same, of a rank that has died without a word.
  std::string death(int rank) const;

  // Maps `bytes` at `offset` within this generation; null without memory.
  std::byte* map(uint64_t offset, size_t bytes);
  void unmap(std::byte* memory, size_t bytes);
  // The same in two steps, for what grows: pages, false without memory, which are there from then
  // on, and addresses. Pages that exist keep what they hold.
  bool provide(uint64_t offset, size_t bytes);
  std::byte* map_provided(uint64_t offset, size_t bytes);
  // Gives the pages back to the system; they read as zero afterwards.
  void discard(uint64_t offset, size_t bytes);

 private:
  struct Record;
  enum State : uint32_t { kAbsent, kRunning, kLeft, kGaveUp };

  uint64_t base() const;
  bool lock_own_byte();
  bool is_alive(int rank) const;
  std::string absent_ranks() const;
  Status compare_tuning() const;
  void forget_last_generation();
  Status too_late(const std::string& absent, double timeout_seconds) const;

  std::string name(int rank) const { return std::to_string(names_[static_cast<size_t>(rank)]); }

  int fd_;
  int rank_;
  int size_;
  std::vector<int> names_;
  uint32_t generation_ = 0;
  Record* records_ = nullptr;
  std::mutex giving_up_;
};

}  // namespace ringar
