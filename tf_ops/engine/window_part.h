// One rank's part of a window, for the ranks of its host: elements in chunks, and beside them the
// state of each chunk.
//
//   0                  a WindowChunk per chunk
//   whole pages        the elements
//
// A write takes the chunk's lock, makes the version odd, stores, and makes it even again. A read
// takes no lock: it copies, and looks whether the version has changed meanwhile (a seqlock: Lameter
// 2005; Boehm 2012 on its fences). After a few vain attempts it takes the lock, too, so that
// writers cannot keep it out for ever.
//
// The lock has its holder's rank. A rank that waits for a dead one gets an error if the version is
// odd, since half of a write may be there; if it is even, it takes the lock over.
//
// Two ways of adding take no lock. kAtomicAdd loses no update of another kAtomicAdd or kFetchAdd,
// kRacyAdd may. Both raise the version when they are done, but a read in the middle of one sees
// some of its elements added and others not.
//
// Rows are many short accesses in one call. Those that take no lock leave versions alone, too: the
// counters of a few chunks would go from core to core at each call, and elements hardly do.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/status.h"
#include "engine/types.h"
#include "engine/watchdog.h"

namespace ringar {

// The accesses of a rank to the part of another one; ringar.h has the same order.
enum class Access : int32_t {
  kGet,
  kPut,
  kAdd,
  kAtomicAdd,
  kRacyAdd,
  kFetchAdd,  // of one element; the old value goes to where the summand was
  kVersions,  // reads no elements
};

struct WindowAccess {
  Access kind;
  int64_t start, count;               // elements
  std::byte* array;                   // read or written, by kind
  int64_t* versions = nullptr;        // of the chunks, before they were read; null: not wanted
  const std::byte* before = nullptr;  // of kAdd: as in WindowRows

  bool reads() const { return kind == Access::kGet || kind == Access::kVersions; }
};

// An access to rows of a part that is a matrix of rows of `stride` elements: to `width` of them
// from `column` on.
struct WindowRows {
  Access kind;          // kGet, kAdd, kAtomicAdd or kRacyAdd
  const int64_t* rows;  // in any order, also several times
  int64_t count;
  int64_t stride, column, width;
  std::byte* array;                   // count * width elements
  const std::byte* before = nullptr;  // of an addition: `array` has values after (shared_change.h)

  bool moves() const { return before != nullptr; }
};

// The properties that the parts of one window share.
struct WindowLayout {
  static constexpr int64_t kChunkUnit = 64, kMostChunkBytes = 1 << 20;
  static constexpr int64_t kMostElements = int64_t{1} << 40;

  DataType dtype = DataType::kFloat32;
  size_t chunk_bytes = 0;

  int64_t chunk_elements() const { return static_cast<int64_t>(chunk_bytes / size_of(dtype)); }
  size_t chunks(int64_t length) const {
    return static_cast<size_t>((length + chunk_elements() - 1) / chunk_elements());
  }
  // Of a part, in whole pages; the second, where its elements begin.
  size_t bytes(int64_t length) const;
  size_t begin_of_elements(int64_t length) const;
  // Why the dtype does not allow this kind of access, or "".
  std::string refusal(Access kind) const;
  std::string refusal(const WindowRows& access) const;
};

class WindowPart {
 public:
  // Tells why a rank will never give back a lock, or {}. It is asked before each sleep.
  class Patience {
   public:
    virtual Status look(int holder, double seconds) const = 0;

   protected:
    ~Patience() = default;
  };

  // `memory` is zero, or has been a part already. `rank` is this one's.
  WindowPart(std::byte* memory, int64_t length, const WindowLayout& layout, int rank,
             const Timeouts& timeouts, size_t past_caches_bytes, const Patience& patience);

  std::byte* elements() const { return elements_; }
  // Of elements within the part, by a kind that fits the dtype. Any thread.
  Status access(const WindowAccess& access) const;
  Status access(const WindowRows& access) const;

 private:
  struct Chunk;

  Status access_chunk(Chunk& chunk, const WindowAccess& access, bool past_caches) const;
  Status read(Chunk& chunk, const WindowAccess& access, bool past_caches) const;
  Status write(Chunk& chunk, const WindowAccess& access, bool past_caches) const;
  Status lock(Chunk& chunk) const;
  std::byte* at(int64_t element) const {
    return elements_ + static_cast<size_t>(element) * element_bytes_;
  }
  size_t bytes_of(const WindowAccess& access) const {
    return static_cast<size_t>(access.count) * element_bytes_;
  }

  Chunk* const chunks_;
  std::byte* const elements_;
  const WindowLayout layout_;
  const size_t element_bytes_;
  const uint32_t holder_;  // this rank in locks
  const Timeouts& timeouts_;
  const size_t past_caches_bytes_;
  const Patience& patience_;
};

}  // namespace ringar
