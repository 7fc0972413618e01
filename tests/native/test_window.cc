// Windows: no torn reads, no lost additions, versions, and ranks that die while they write.

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "check.h"
#include "engine/tuning.h"
#include "engine/window.h"
#include "ranks.h"

namespace ringar::test {
namespace {

std::shared_ptr<Window> open(Engine& engine, const std::string& dtype, int64_t length,
                             int64_t chunk_bytes = 4096) {
  Spec spec;
  EXPECT_OK(Spec::parse("open_window dtype=" + dtype + " name=shared", &spec));
  std::shared_ptr<Window> window;
  EXPECT_OK(engine.open_window(spec, length, chunk_bytes, &window));
  return window;
}

template <typename T>
Status access(Window& window, int rank, Access kind, std::vector<T>& values, int64_t start = 0,
              int64_t* versions = nullptr) {
  return window.access(rank, {kind, start, static_cast<int64_t>(values.size()),
                              reinterpret_cast<std::byte*>(values.data()), versions});
}

template <typename Body>
void on_windows(Rank& me, const std::string& dtype, int64_t length, Body body) {
  const auto engine = me.start();
  const auto window = open(*engine, dtype, length);
  body(*window);
  EXPECT_OK(engine->close_window(window));
  EXPECT_EQ(window->access(0, {Access::kGet, 0, 0, nullptr}).code(), RINGAR_MISMATCH);
}

// In the middle of each chunk begins another number of the sequence that a writer has put there.
void no_read_is_torn(Rank& me) {
  constexpr int64_t kLength = 1500, kChunk = 4096 / sizeof(int64_t);
  constexpr int kWrites = 300;
  on_windows(me, "int64", kLength, [&](Window& window) {
    std::vector<int64_t> values(kLength), read(kLength), versions(3);
    for (int i = 1; i <= kWrites; ++i) {
      std::fill(values.begin(), values.end(), me.rank * kWrites + i);
      EXPECT_OK(access(window, 0, Access::kPut, values));
      EXPECT_OK(access(window, 0, Access::kGet, read, 0, versions.data()));
      for (int64_t at = 0; at < kLength; ++at)
        EXPECT_EQ(read[static_cast<size_t>(at)], read[static_cast<size_t>(at / kChunk * kChunk)]);
      EXPECT(versions[1] >= i && versions[1] <= me.size * kWrites);
    }
    me.meet(0);
    EXPECT_OK(access(window, 0, Access::kVersions, values, 0, versions.data()));
    for (int64_t version : versions) EXPECT_EQ(version, int64_t{me.size} * kWrites);
    me.meet(1);
  });
}

TEST(window_reads_are_never_torn_by_threads) {
  on_threads(4, no_read_is_torn);
}
TEST(window_reads_are_never_torn_by_processes) {
  on_processes(4, no_read_is_torn);
}

// A million updates by four ranks, of elements in two chunks.
template <typename T>
void nothing_is_lost(Rank& me, Access kind, const std::string& dtype) {
  constexpr int kAdditions = 250'000, kAtOnce = 100;
  const int64_t length = 2 * 4096 / static_cast<int64_t>(sizeof(T)), start = length / 2 - 50;
  on_windows(me, dtype, length, [&](Window& window) {
    const size_t count = kind == Access::kFetchAdd ? 1 : kAtOnce;
    std::vector<T> items(count), all(static_cast<size_t>(length));
    int64_t old = -1;
    for (size_t i = 0; i < kAdditions / count; ++i) {
      std::fill(items.begin(), items.end(), T{1});
      EXPECT_OK(access(window, 1, kind, items, start));
      if (kind != Access::kFetchAdd) continue;
      EXPECT(static_cast<int64_t>(items[0]) > old);  // nobody gets a number twice
      old = static_cast<int64_t>(items[0]);
    }
    me.meet(0);
    EXPECT_OK(access(window, 1, Access::kGet, all));
    const T expected = static_cast<T>(kAdditions / count * static_cast<size_t>(me.size));
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(all[static_cast<size_t>(start) + i], expected);
    EXPECT_EQ(all[static_cast<size_t>(start) - 1], T{0});
    EXPECT_EQ(all[static_cast<size_t>(start) + count], T{0});
    me.meet(1);
  });
}

TEST(window_loses_no_atomic_addition) {
  on_threads(4, [](Rank& me) { nothing_is_lost<int64_t>(me, Access::kAtomicAdd, "int64"); });
  on_processes(4, [](Rank& me) { nothing_is_lost<float>(me, Access::kAtomicAdd, "float32"); });
  on_processes(4, [](Rank& me) { nothing_is_lost<double>(me, Access::kAtomicAdd, "float64"); });
}
TEST(window_loses_no_locked_addition) {
  on_threads(4, [](Rank& me) { nothing_is_lost<float>(me, Access::kAdd, "float32"); });
}
TEST(window_gives_each_number_once) {
  on_processes(4, [](Rank& me) { nothing_is_lost<int32_t>(me, Access::kFetchAdd, "int32"); });
}

// The second page of what it writes cannot be read: it dies with the chunk's lock.
void die_in_the_middle_of_a_put(Window& window) {
  signal(SIGSEGV, SIG_DFL);
  const size_t page = page_bytes();
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  EXPECT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
  (void)window.access(2, {Access::kPut, 0, static_cast<int64_t>(2 * page), pages});
}

TEST(window_names_the_rank_that_died_in_a_write) {
  const auto all = endings(3, [](Rank& me) {
    const auto engine = me.start();
    const auto bytes = static_cast<int64_t>(4 * page_bytes());
    const auto window = open(*engine, "uint8", bytes, bytes / 2);
    std::vector<uint8_t> values(static_cast<size_t>(bytes));
    EXPECT_OK(access(*window, 1, Access::kGet, values));
    me.meet(1);  // all have read before it dies
    if (me.rank == 1) die_in_the_middle_of_a_put(*window);
    values.resize(values.size() / 2);
    for (Status status; status.ok();) {
      status = access(*window, 1, Access::kGet, values);
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
      EXPECT_CONTAINS(status.message(), "get in window \"shared\": expected rank 1 to be there, ");
      EXPECT_CONTAINS(status.message(), "rank 1 has died");
    }
    for (const Access kind : {Access::kGet, Access::kPut}) {
      const Status torn = access(*window, 2, kind, values);
      EXPECT_EQ(torn.code(), RINGAR_PEER_LOST);
      EXPECT_CONTAINS(torn.message(),
                      "expected rank 1 to end its write to the same chunk, but rank 1 has died");
    }
    EXPECT_OK(access(*window, 2, Access::kPut, values, bytes / 2));  // the other chunk
    me.add(0);
    me.await(0, 2);  // a rank that had left would be missed
  });
  EXPECT_EQ(all[0].code, 0);
  EXPECT_EQ(all[1].signal, SIGSEGV);
  EXPECT_EQ(all[2].code, 0);
}

TEST(window_gives_its_pages_back) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    for (int i = 0; i < 3; ++i) {
      auto window = open(*engine, "float32", 100'000 * (me.rank + 1));
      auto* const local = reinterpret_cast<float*>(window->local());
      for (int64_t at = 0; at < window->length(me.rank); ++at) {
        EXPECT_EQ(local[at], 0.0f);
        local[at] = 1.0f;
      }
      EXPECT_OK(engine->close_window(window));
      EXPECT_OK(engine->close_window(window));
      EXPECT_EQ(local[99'999], 1.0f);
    }
  });
}

}  // namespace
}  // namespace ringar::test
