// Memory for outputs in the shared segment, where every rank of the host can write to it.
//
// The owner of a slice of an allreduce writes the sum to the outputs of all ranks at once if they
// lie here, and nobody copies it from the owner (shared_memory_reduce.cc). The same holds for
// inputs, which the owner reads where they lie.
//
// Each rank has a part of equal length, and takes and frees memory in its own. All ranks map all
// parts when they start. If one cannot, or has another length, there is no pool. Without free
// memory in the pool, an output lies elsewhere; the others need not know before the collective.
//
//     0        taken | free | taken | free      high          length
//     ----------------- pages exist ---------------|--- addresses only ---
//
// Memory is taken at the lowest free address that fits: the pages there were used before. Idle
// pages are kept up to half the length, and given back where the host or the container has less
// than an eighth of its memory free. Then there are no new pages either: outputs lie elsewhere.
//
// Memory may be freed by any thread, after the engine has stopped, too. A forked child gets copies
// of what is taken, before fork() returns in the parent: otherwise it would see later writes of the
// parent and the other ranks.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace ringar {

class OutputPool : public std::enable_shared_from_this<OutputPool> {
 public:
  // Below this, a rank saves less than it spends on pages and addresses.
  static constexpr size_t kLeastBytes = size_t{256} << 10;

  // What a rank may take where `ranks` ranks share a host whose segment has at most
  // `segment_bytes`: RINGAR_OUTPUT_POOL, or 1 GiB, but at most a quarter in all of the memory of
  // the host or of the container.
  static size_t bytes_for(int ranks, uint64_t segment_bytes);

  using Provide = std::function<bool(uint64_t offset, size_t bytes)>;
  // Whether host or container lack memory, if so many bytes more are used.
  using IsShort = std::function<bool(size_t growth)>;

  // `memory`: the parts of all ranks, of `bytes` each, mapped; this one's is number `place`.
  // `provide` makes pages of this part until the pool is closed.
  OutputPool(std::byte* memory, size_t bytes, int place, int places, Provide provide,
             IsShort is_short);
  ~OutputPool();
  OutputPool(const OutputPool&) = delete;
  OutputPool& operator=(const OutputPool&) = delete;

  // Memory that has been taken; its end gives it back.
  class Memory {
   public:
    Memory(std::shared_ptr<OutputPool> pool, uint64_t offset);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    std::byte* data() const;

   private:
    const std::shared_ptr<OutputPool> pool_;
    const uint64_t offset_;
  };

  // Null where there is no room for so many bytes, or they are too few.
  std::unique_ptr<Memory> take(size_t bytes);

  // Whether memory lies in this rank's part, and where.
  bool has(const std::byte* memory) const { return memory >= part() && memory < part() + bytes_; }
  uint64_t offset_of(const std::byte* memory) const {
    return static_cast<uint64_t>(memory - part());
  }
  // The memory at an offset in the part of a rank.
  std::byte* at(int place, uint64_t offset) const {
    return memory_ + bytes_ * static_cast<size_t>(place) + offset;
  }

  // Keeps memory of a failed collective from being taken again: a late rank may still write there.
  void forfeit(const std::byte* memory);

  // Nothing can be taken any longer. What is taken stays until it is given back.
  void close();

  size_t bytes_taken() const;
  size_t bytes_with_pages() const;

 private:
  struct Allocation {
    size_t bytes;
    bool forfeited;
  };

  std::byte* part() const { return at(place_, 0); }
  void give_back(uint64_t offset);
  // These are called with the lock held.
  void free_addresses(uint64_t offset, size_t bytes);
  void discard(uint64_t begin, uint64_t end);
  void discard_surplus();

  static void prepare_fork();
  static void go_on_after_fork();
  static void copy_in_forked_child();
  void copy_what_is_taken();

  std::byte* const memory_;
  const size_t bytes_;
  const int place_, places_;
  mutable std::mutex mutex_;
  Provide provide_;  // null when closed
  const IsShort is_short_;
  bool in_child_ = false;            // a forked one, which owns nothing here
  uint64_t high_ = 0;                // where pages end
  std::map<uint64_t, size_t> free_;  // addresses, none side by side
  std::map<uint64_t, Allocation> allocations_;
};

}  // namespace ringar
