#include "engine/window_part.h"

#include <algorithm>
#include <cstring>

#include "engine/atomic_add.h"
#include "engine/copy.h"
#include "engine/reduce.h"
#include "engine/shared_change.h"
#include "engine/tuning.h"
#include "engine/wait.h"

namespace ringar {

// In shared memory. A cache line each: neighbors have other writers.
struct alignas(64) WindowPart::Chunk {
  std::atomic<uint64_t> version;  // twice the number of writes; odd during one
  std::atomic<uint32_t> holder;   // of the lock: a rank of the job plus one, or 0
};

namespace {

constexpr int kReadsWithoutLock = 8;

// A read that a write has overtaken is thrown away: this race is no error. ThreadSanitizer knows no
// fences (and would not see the order anyway), so it must not see the copy. Elements are copied as
// a whole, as memcpy does: additions that take no lock may change them meanwhile.
#if defined(__SANITIZE_THREAD__)
template <typename Word>
__attribute__((no_sanitize("thread"))) void copy_words(std::byte* to, const std::byte* from,
                                                       size_t bytes) {
  auto* const target = reinterpret_cast<volatile Word*>(to);
  const auto* const source = reinterpret_cast<const volatile Word*>(from);
  for (size_t i = 0; i < bytes / sizeof(Word); ++i) target[i] = source[i];
}
__attribute__((no_sanitize("thread"))) void copy_in_a_race(std::byte* to, const std::byte* from,
                                                           size_t bytes, bool) {
  const auto ends = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  if (ends % sizeof(uint64_t) == 0) return copy_words<uint64_t>(to, from, bytes);
  if (ends % sizeof(uint32_t) == 0) return copy_words<uint32_t>(to, from, bytes);
  copy_words<char>(to, from, bytes);
}
void fence_loads() {}
void fence_stores() {}
#else
void copy_in_a_race(std::byte* to, const std::byte* from, size_t bytes, bool past_caches) {
  if (past_caches)
    copy_past_caches(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}
void fence_loads() {
  std::atomic_thread_fence(std::memory_order_acquire);
}
void fence_stores() {
  std::atomic_thread_fence(std::memory_order_release);
}
#endif

void add(DataType dtype, std::byte* to, const std::byte* summands, int64_t elements) {
  const std::byte* const sources[] = {to, summands};
  reduce({dtype, ReduceOp::kSum}, sources, 2, to, static_cast<size_t>(elements));
}

}  // namespace

size_t WindowLayout::begin_of_elements(int64_t length) const {
  return page_up(64 * chunks(length));
}

size_t WindowLayout::bytes(int64_t length) const {
  return begin_of_elements(length) + page_up(static_cast<size_t>(length) * size_of(dtype));
}

std::string WindowLayout::refusal(Access kind) const {
  const bool is_atomic = kind == Access::kAtomicAdd || kind == Access::kFetchAdd;
  const bool adds = kind == Access::kAdd || kind == Access::kRacyAdd;
  if (is_atomic && !has_atomic_add(dtype))
    return "expected float32, float64, int32, int64, uint32 or uint64 for an atomic addition";
  if (adds && !is_reducible(dtype))
    return "expected float16, bfloat16, float32, float64, int8, uint8, int32 or int64 for an "
           "addition";
  return "";
}

std::string WindowLayout::refusal(const WindowRows& access) const {
  if (access.moves() && !has_atomic_add(dtype))
    return "expected float32, float64, int32, int64, uint32 or uint64 for an update";
  return access.moves() ? "" : refusal(access.kind);
}

WindowPart::WindowPart(std::byte* memory, int64_t length, const WindowLayout& layout, int rank,
                       const Timeouts& timeouts, size_t past_caches_bytes, const Patience& patience)
    : chunks_(reinterpret_cast<Chunk*>(memory)),
      elements_(memory + layout.begin_of_elements(length)),
      layout_(layout),
      element_bytes_(size_of(layout.dtype)),
      holder_(static_cast<uint32_t>(rank) + 1),
      timeouts_(timeouts),
      past_caches_bytes_(past_caches_bytes),
      patience_(patience) {
  static_assert(sizeof(Chunk) == 64, "as in begin_of_elements()");
}

Status WindowPart::access(const WindowAccess& all) const {
  const bool past_caches = bytes_of(all) >= past_caches_bytes_;
  const int64_t chunk_elements = layout_.chunk_elements(), end = all.start + all.count;
  WindowAccess piece = all;
  for (int64_t at = all.start; at < end; at += piece.count) {
    const int64_t chunk = at / chunk_elements;
    piece.start = at;
    piece.count = std::min(end, (chunk + 1) * chunk_elements) - at;
    RINGAR_RETURN_IF_ERROR(access_chunk(chunks_[chunk], piece, past_caches));
    if (piece.array) piece.array += bytes_of(piece);
    if (piece.before) piece.before += bytes_of(piece);
    if (piece.versions) ++piece.versions;
  }
  return {};
}

Status WindowPart::access(const WindowRows& all) const {
  const bool is_atomic = all.kind == Access::kAtomicAdd, is_racy = all.kind == Access::kRacyAdd;
  if (is_atomic || (is_racy && has_atomic_add(layout_.dtype))) {
    change_rows({layout_.dtype, is_atomic, all.array, all.before}, elements_, all.rows, all.count,
                all.stride, all.column, all.width);
    return {};
  }
  WindowAccess row{all.kind, 0, all.width, all.array, nullptr, all.before};
  const auto start_of = [&](int64_t i) { return all.rows[i] * all.stride + all.column; };
  for (int64_t i = 0; i < all.count; ++i) {
    if (i + kRowsAhead < all.count) __builtin_prefetch(at(start_of(i + kRowsAhead)));
    row.start = start_of(i);
    if (is_racy)
      add(layout_.dtype, at(row.start), row.array, row.count);
    else
      RINGAR_RETURN_IF_ERROR(access(row));
    row.array += bytes_of(row);
    if (row.before) row.before += bytes_of(row);
  }
  return {};
}

Status WindowPart::access_chunk(Chunk& chunk, const WindowAccess& access, bool past_caches) const {
  std::byte* const elements = at(access.start);
  switch (access.kind) {
    case Access::kGet:
      return read(chunk, access, past_caches);
    case Access::kPut:
    case Access::kAdd:
      return write(chunk, access, past_caches);
    case Access::kAtomicAdd:
      atomic_add(layout_.dtype, elements, access.array, static_cast<size_t>(access.count));
      break;
    case Access::kRacyAdd:
      add(layout_.dtype, elements, access.array, access.count);
      break;
    case Access::kFetchAdd:
      atomic_fetch_add(layout_.dtype, elements, access.array);
      break;
    case Access::kVersions:
      *access.versions = static_cast<int64_t>(chunk.version.load() / 2);
      return {};
  }
  chunk.version.fetch_add(2, std::memory_order_release);
  return {};
}

Status WindowPart::read(Chunk& chunk, const WindowAccess& access, bool past_caches) const {
  uint64_t before = 0;
  const auto copy = [&] {
    before = chunk.version.load(std::memory_order_acquire);
    copy_in_a_race(access.array, at(access.start), bytes_of(access), past_caches);
    if (access.versions) *access.versions = static_cast<int64_t>(before / 2);
  };
  for (int i = 0; i < kReadsWithoutLock; ++i) {
    copy();
    fence_loads();
    if (before % 2 == 0 && chunk.version.load(std::memory_order_relaxed) == before) return {};
    relax();
  }
  RINGAR_RETURN_IF_ERROR(lock(chunk));
  copy();
  chunk.holder.store(0, std::memory_order_release);
  return {};
}

Status WindowPart::write(Chunk& chunk, const WindowAccess& access, bool past_caches) const {
  RINGAR_RETURN_IF_ERROR(lock(chunk));
  chunk.version.fetch_add(1, std::memory_order_relaxed);
  fence_stores();
  if (access.before)
    change_elements({layout_.dtype, false, access.array, access.before}, at(access.start),
                    access.count);
  else if (access.kind == Access::kAdd)
    add(layout_.dtype, at(access.start), access.array, access.count);
  else if (past_caches)
    copy_past_caches(at(access.start), access.array, bytes_of(access));
  else
    copy_to_shared(at(access.start), access.array, bytes_of(access));
  chunk.version.fetch_add(1, std::memory_order_release);
  chunk.holder.store(0, std::memory_order_release);
  return {};
}

Status WindowPart::lock(Chunk& chunk) const {
  uint32_t holder = 0;
  const auto is_mine = [&] {
    holder = 0;
    return chunk.holder.compare_exchange_strong(holder, holder_, std::memory_order_acquire);
  };
  if (is_mine()) return {};
  const auto take = [&](bool* done) -> Status {
    *done = is_mine();
    return {};
  };
  Stopwatch stopwatch;
  // The holder may have died before its write, or after it: then nothing is torn.
  const auto look = [&]() -> Status {
    const double waited = stopwatch.seconds();
    if (holder == 0) return {};
    const Status vain = patience_.look(static_cast<int>(holder) - 1, waited);
    const bool is_even = chunk.version.load() % 2 == 0;
    return vain.code() == RINGAR_PEER_LOST && is_even &&
                   chunk.holder.compare_exchange_strong(holder, 0)
               ? Status()
               : vain;
  };
  return wait_until(Rest{timeouts_.spin()}, nullptr, take, look);
}

}  // namespace ringar
