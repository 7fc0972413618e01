// Rows of windows: no addition and no move is lost, ranks that are alone with their rows compute
// what one process does, and rows outside the part are refused.

#include <vector>

#include "check.h"
#include "engine/window.h"
#include "ranks.h"

namespace ringar::test {
namespace {

constexpr int64_t kWindowRows = 100, kWidth = 5, kChunkBytes = 256;  // rows lie across chunks

// One after the other, with a window of each dtype.
template <typename Body>
void on_windows(Rank& me, const std::vector<std::string>& dtypes, Body body) {
  const auto engine = me.start();
  for (const std::string& dtype : dtypes) {
    Spec spec;
    EXPECT_OK(Spec::parse("open_window dtype=" + dtype + " name=rows", &spec));
    std::shared_ptr<Window> window;
    EXPECT_OK(
        engine->open_window(spec, me.rank == 0 ? kWindowRows * kWidth : 0, kChunkBytes, &window));
    body(*window);
    EXPECT_OK(engine->close_window(window));
  }
}

template <typename T>
Status access(Window& window, Access kind, const std::vector<int64_t>& rows, std::vector<T>& values,
              int64_t width = kWidth, const std::vector<T>* before = nullptr) {
  return window.access(
      0, WindowRows{kind, rows.data(), static_cast<int64_t>(rows.size()), width, 0, width,
                    reinterpret_cast<std::byte*>(values.data()),
                    before ? reinterpret_cast<const std::byte*>(before->data()) : nullptr});
}

template <typename T>
std::vector<T> all_of(Window& window) {
  std::vector<T> values(kWindowRows * kWidth);
  EXPECT_OK(window.access(0, WindowAccess{Access::kGet, 0, kWindowRows * kWidth,
                                          reinterpret_cast<std::byte*>(values.data())}));
  return values;
}

// A million updates of rows by four ranks: of `kAtOnce` rows, one of them twice.
template <typename T>
void nothing_is_lost(Rank& me, Access kind, const std::string& dtype, bool moves) {
  constexpr int64_t kAdditions = 250'000, kAtOnce = 5;
  on_windows(me, {dtype}, [&](Window& window) {
    std::vector<int64_t> rows(kAtOnce);
    std::vector<T> values(kAtOnce * kWidth), before(values.size());
    for (int64_t i = 0; i < kAdditions / kAtOnce; ++i) {
      for (int64_t k = 0; k < kAtOnce; ++k)
        rows[static_cast<size_t>(k)] = (7 * i + 3 * k) % kWindowRows;
      rows[4] = rows[0];
      if (moves) {
        EXPECT_OK(access(window, Access::kGet, rows, before));
        for (size_t k = 0; k < values.size(); ++k) values[k] = before[k] + T{1};
        EXPECT_OK(access(window, kind, rows, values, kWidth, &before));
        for (size_t k = 0; k < values.size(); ++k) EXPECT(values[k] > before[k]);
      } else {
        std::fill(values.begin(), values.end(), T{1});
        EXPECT_OK(access(window, kind, rows, values));
      }
    }
    me.meet(0);
    T sum = 0;
    const std::vector<T> all = all_of<T>(window);
    for (int64_t row = 0; row < kWindowRows; ++row) {
      for (int64_t k = 1; k < kWidth; ++k)
        EXPECT_EQ(all[static_cast<size_t>(row * kWidth + k)],
                  all[static_cast<size_t>(row * kWidth)]);
      sum += all[static_cast<size_t>(row * kWidth)];
    }
    EXPECT_EQ(sum, static_cast<T>(kAdditions * me.size));
  });
}

TEST(window_loses_no_atomic_addition_to_rows) {
  on_threads(4, [](Rank& me) { nothing_is_lost<int64_t>(me, Access::kAtomicAdd, "int64", false); });
  on_processes(4,
               [](Rank& me) { nothing_is_lost<float>(me, Access::kAtomicAdd, "float32", false); });
}
TEST(window_loses_no_locked_addition_to_rows) {
  on_processes(4, [](Rank& me) { nothing_is_lost<double>(me, Access::kAdd, "float64", false); });
}
TEST(window_loses_no_atomic_move) {
  on_processes(4,
               [](Rank& me) { nothing_is_lost<int32_t>(me, Access::kAtomicAdd, "int32", true); });
  on_threads(4, [](Rank& me) { nothing_is_lost<double>(me, Access::kAtomicAdd, "float64", true); });
}
TEST(window_loses_no_locked_move) {
  on_processes(4, [](Rank& me) { nothing_is_lost<float>(me, Access::kAdd, "float32", true); });
}

// Each rank has every fourth row to itself. before + (after - before) would not be after.
TEST(window_moves_alone_are_exact) {
  on_processes(4, [](Rank& me) {
    on_windows(me, {"float32"}, [&](Window& window) {
      std::vector<int64_t> rows;
      for (int64_t row = me.rank; row < kWindowRows; row += me.size) rows.push_back(row);
      std::vector<float> values(rows.size() * kWidth), before(values.size());
      for (const Access kind : {Access::kAdd, Access::kAtomicAdd, Access::kRacyAdd})
        for (int i = 1; i < 200; ++i) {
          EXPECT_OK(access(window, Access::kGet, rows, before));
          for (size_t k = 0; k < values.size(); ++k)
            values[k] = 1e-4f * static_cast<float>(i * i) - before[k] / 3.0f;
          const std::vector<float> expected = values;
          EXPECT_OK(access(window, kind, rows, values, kWidth, &before));
          EXPECT(values == expected);
          EXPECT_OK(access(window, Access::kGet, rows, before));
          EXPECT(before == expected);
        }
    });
  });
}

TEST(window_adds_to_rows_of_every_width) {
  on_threads(2, [](Rank& me) {
    on_windows(me, {"int64", "float16"}, [&](Window& window) {
      if (me.rank == 0) return;
      for (const int64_t width : {int64_t{1}, int64_t{70}, kWindowRows * kWidth}) {
        const std::vector<int64_t> rows = {kWindowRows * kWidth / width - 1, 0};
        std::vector<int64_t> zeros(static_cast<size_t>(2 * width));  // in float16, too
        for (const Access kind : {Access::kAdd, Access::kRacyAdd})
          EXPECT_OK(access(window, kind, rows, zeros, width));
        EXPECT_OK(access(window, Access::kGet, rows, zeros, width));
        for (int64_t value : zeros) EXPECT_EQ(value, 0);
      }
    });
  });
}

TEST(window_refuses_rows_outside_the_part) {
  on_threads(2, [](Rank& me) {
    on_windows(me, {"float32"}, [&](Window& window) {
      std::vector<float> values(2 * kWidth);
      for (const int64_t index : {int64_t{-1}, kWindowRows}) {
        const Status status = access(window, Access::kAtomicAdd, {0, index}, values);
        EXPECT_EQ(status.code(), RINGAR_MISMATCH);
        EXPECT_CONTAINS(status.message(),
                        "scatter_add in window \"rows\": expected rows among the 100 of width 5 of "
                        "rank 0, received row " +
                            std::to_string(index) + " at index 1");
      }
      const Status error = access(window, Access::kGet, {0}, values, 0);
      EXPECT_CONTAINS(error.message(), "gather in window \"rows\": expected rows of at least one");
    });
  });
  on_threads(2, [](Rank& me) {
    on_windows(me, {"float16"}, [&](Window& window) {
      std::vector<int16_t> values(kWidth);
      EXPECT_CONTAINS(access(window, Access::kAtomicAdd, {0}, values).message(),
                      "for an atomic addition, received a window of float16");
      EXPECT_CONTAINS(access(window, Access::kAdd, {0}, values, kWidth, &values).message(),
                      "update in window \"rows\": expected float32");
    });
  });
}

}  // namespace
}  // namespace ringar::test
