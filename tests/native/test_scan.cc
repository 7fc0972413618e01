// The scan against the serial product in double: lengths, sizes, batches, levels and threads, and
// values that easily go wrong.

#include <algorithm>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <thread>

#include "chains.h"
#include "check.h"
#include "ranks.h"
#include "scan/choice.h"
#include "scan/scan.h"
#include "scan/workers.h"

namespace ringar::test {
namespace {

template <typename T>
constexpr double kTolerance = sizeof(T) == 4 ? 1e-5 : 1e-12;

// Sums that nearly cancel are held to what went into them: a vector of one or two elements may pass
// close to 0.
template <typename T>
void expect_close(const ChainCase& of, ChainArrays<T>& arrays,
                  const std::vector<std::vector<double>>& expected, const std::string& how) {
  double largest = 0;
  for (int64_t k = 0; k <= of.length; ++k)
    for (int64_t b = 0; b < of.batch; ++b) {
      const double* example = expected[static_cast<size_t>(k)].data() + b * of.size;
      for (int64_t i = 0; i < of.size; ++i) largest = std::max(largest, std::fabs(example[i]));
      const double least = of.has_addends || of.size < 4 ? 0.1 * largest : 1e-30;
      const double error = distance(
          of.size, [&](int64_t i) { return static_cast<double>(*arrays.at(k, b * of.size + i)); },
          example, least);
      if (!(error <= kTolerance<T>))
        fail(__FILE__, __LINE__,
             of.text() + how + ": v_" + std::to_string(k) + " of example " + std::to_string(b) +
                 " is off by " + std::to_string(error / kTolerance<T>) + " times the tolerance");
    }
}

template <typename T>
void expect_serial(const ChainCase& of, const std::vector<int>& levels,
                   const std::vector<int>& threads) {
  ChainArrays<T> arrays(of);
  const auto expected = arrays.serial();
  for (const int count : threads)
    for (const int l : levels) {
      // What a scan leaves out is not to be right by the one before.
      for (int64_t k = 1; k <= of.length; ++k)
        std::fill_n(arrays.at(k, 0), of.batch * of.size, std::numeric_limits<T>::quiet_NaN());
      scan(arrays.chain(), l, count);
      expect_close(of, arrays, expected,
                   ", levels " + std::to_string(l) + ", threads " + std::to_string(count));
    }
}
template <typename T>
void expect_serial(const ChainCase& of, int levels, int threads) {
  expect_serial<T>(of, std::vector{levels}, std::vector{threads});
}

std::vector<int> some_levels(int64_t length) {
  const int all = scan_levels(length);
  std::vector<int> levels{0, 1, 2, 3, all - 1, all, all + 1};
  levels.erase(std::remove_if(levels.begin(), levels.end(), [](int l) { return l < 0; }),
               levels.end());
  return levels;
}

template <typename T>
void expect_serial_at_all_levels(const ChainCase& of, const std::vector<int>& threads) {
  expect_serial<T>(of, some_levels(of.length), threads);
}

template <typename T>
void expect_nothing_leaks(T value, int levels, bool adjoint, int threads) {
  const ChainCase of{37, 2, 5, adjoint, true};
  constexpr int64_t kStep = 20, kExample = 1;
  ChainArrays<T> clean(of), spoiled(of);
  const_cast<T*>(spoiled.matrix(kStep, kExample))[7] = value;
  scan(clean.chain(), levels, threads);
  scan(spoiled.chain(), levels, threads);
  const auto serial = spoiled.serial();
  for (int64_t k = 0; k <= of.length; ++k)
    for (int64_t i = 0; i < of.batch * of.size; ++i) {
      const double expected = serial[static_cast<size_t>(k)][static_cast<size_t>(i)];
      const T received = *spoiled.at(k, i);
      EXPECT_EQ(std::isfinite(received), std::isfinite(expected));
      if (std::isfinite(received)) EXPECT_EQ(received, *clean.at(k, i));
    }
}

template <typename T>
void expect_whole_chain(const ChainCase& of, int levels, int threads) {
  ChainArrays<T> arrays(of);
  std::vector<T> product(static_cast<size_t>(of.batch * of.size * of.size));
  std::vector<T> addend(static_cast<size_t>(of.batch * of.size));
  reduce_chain(arrays.chain(), levels, threads, product.data(),
               of.has_addends ? addend.data() : nullptr);
  const auto expected = arrays.serial().back();
  for (int64_t b = 0; b < of.batch; ++b) {
    const auto received = [&](int64_t i) {
      double sum =
          of.has_addends ? static_cast<double>(addend[static_cast<size_t>(b * of.size + i)]) : 0;
      for (int64_t j = 0; j < of.size; ++j) {
        const int64_t place = of.adjoint ? j * of.size + i : i * of.size + j;
        sum += static_cast<double>(product[static_cast<size_t>(b * of.size * of.size + place)]) *
               static_cast<double>(*arrays.at(0, b * of.size + j));
      }
      return sum;
    };
    EXPECT(distance(of.size, received, expected.data() + b * of.size, 1e-3) <= 10 * kTolerance<T>);
  }
}

// Counts how often it is asked for matrices.
class CountedChain : public Chain<double> {
 public:
  explicit CountedChain(ChainArrays<double>& arrays)
      : Chain<double>(arrays.chain().length, arrays.chain().batch, arrays.chain().size, false),
        of_(arrays.chain()) {}
  const double* matrices(int64_t k, int64_t first, int64_t last, double* scratch) const override {
    ++requests_;
    return of_.matrices(k, first, last, scratch);
  }
  Rows<const double> addends(int64_t k) const override { return of_.addends(k); }
  bool has_addends() const override { return of_.has_addends(); }
  Rows<double> results(int64_t k) const override { return of_.results(k); }
  int64_t requests() const { return requests_; }

 private:
  const DenseChain<double> of_;
  mutable int64_t requests_ = 0;
};

const int64_t kMatrixSizes[] = {1, 2, 3, 4, 7, 8, 16, 17, 20, 33, 64};

}  // namespace

TEST_APART(scan_equals_the_serial_product_for_all_lengths) {
  for (int64_t length = 0; length <= 34; ++length)
    for (const bool adjoint : {false, true})
      for (const bool has_addends : {false, true}) {
        expect_serial_at_all_levels<float>({length, 2, 5, adjoint, has_addends}, {1, 2, 3});
        expect_serial_at_all_levels<double>({length, 1, 2, adjoint, has_addends}, {1, 2, 3});
      }
}

TEST_APART(scan_equals_the_serial_product_for_all_sizes) {
  for (const int64_t size : kMatrixSizes)
    for (const int64_t batch : {1, 17})
      for (const bool adjoint : {false, true}) {
        expect_serial_at_all_levels<float>({21, batch, size, adjoint, adjoint}, {1});
        expect_serial_at_all_levels<double>({21, batch, size, adjoint, !adjoint}, {2});
      }
}

TEST_APART(scan_equals_the_serial_product_of_long_chains) {
  for (const int64_t length : {1000, 4097})
    for (const Kind kind : {Kind::kOrthogonal, Kind::kNormal, Kind::kZeros}) {
      expect_serial<double>({length, 2, 8, true, false, kind}, 62, 2);
      expect_serial<double>({length, 1, 3, false, true, kind}, 4, 1);
    }
  expect_serial<float>({4097, 2, 8, true, false, Kind::kOrthogonal}, 62, 2);
  expect_serial<float>({4097, 2, 8, false, false, Kind::kOrthogonal}, 5, 1);
}

TEST_APART(scan_is_right_for_a_spectral_radius_above_and_below_1) {
  for (const Kind kind : {Kind::kGrowing, Kind::kShrinking})
    for (const int levels : {0, 3, 62}) {
      expect_serial<double>({1500, 2, 20, true, false, kind}, levels, 1);
      expect_serial<double>({1500, 2, 20, false, true, kind}, levels, 2);
    }
}

TEST_APART(scan_keeps_infinities_and_nan_where_they_belong) {
  for (const bool adjoint : {false, true})
    for (const int levels : {0, 1, 2, 3, 6})
      for (const int threads : {1, 3}) {  // three for two examples: subtrees are shared out
        expect_nothing_leaks<float>(std::numeric_limits<float>::quiet_NaN(), levels, adjoint,
                                    threads);
        expect_nothing_leaks<double>(std::numeric_limits<double>::infinity(), levels, adjoint,
                                     threads);
      }
}

TEST_APART(scan_of_nothing_writes_nothing) {
  for (const ChainCase& of : {ChainCase{5, 0, 3}, ChainCase{5, 3, 0}}) {
    float untouched = 7;
    const DenseChain<float> chain(of.length, of.batch, of.size, false, nullptr, nullptr,
                                  &untouched);
    scan(chain, 3, 2);
    reduce_chain(chain, 3, 2, &untouched, &untouched);
    EXPECT_EQ(untouched, 7.0f);
  }
}

TEST(scan_asks_for_a_left_leaf_twice_and_for_a_right_one_once) {
  for (const int64_t length : {1, 2, 7, 8, 31, 32, 100}) {
    ChainArrays<double> arrays({length, 1, 2});
    CountedChain chain(arrays);
    scan(chain, 62, 1);
    // The way up takes all pairs of positions that something follows, the vector's place apart; the
    // way down the left one of each pair behind the first; and the end of the chain its last.
    const int64_t positions = length + 1, pairs = (positions - 1) / 2;
    const int64_t up = 2 * pairs - (pairs > 0), down = positions / 2 - 1;
    EXPECT_EQ(chain.requests(), up + down + 1);
  }
}

TEST_APART(scan_does_not_depend_on_threads_where_groups_suffice) {
  const ChainCase of{100, 64, 20, true, true};
  ChainArrays<float> serial(of), parallel(of);
  scan(serial.chain(), 62, 1);
  scan(parallel.chain(), 62, 2);
  EXPECT(serial.results == parallel.results);
}

TEST_APART(scan_reduces_a_chain_to_one_map) {
  for (const int64_t length : {0, 1, 2, 3, 5, 8, 31, 32, 100})
    for (const bool adjoint : {false, true})
      for (const int threads : {1, 2})
        for (const int levels : some_levels(length)) {
          expect_whole_chain<float>({length, 3, 6, adjoint, length % 2 == 1}, levels, threads);
          expect_whole_chain<double>({length, 1, 20, adjoint, length > 0}, levels, threads);
        }
}

TEST(scan_chooses_the_serial_chain_on_one_core) {
  for (const int64_t size : {8, 20, 64})
    for (const int64_t length : {10, 1000, 30000})
      EXPECT_EQ(choose_levels({length, 16, size}, 1), 0);
}

TEST(scan_chooses_the_tree_where_workers_are_many) {
  EXPECT(choose_levels({30000, 1, 4}, 64) > 0);
  EXPECT_EQ(choose_levels({30000, 1, 64}, 4), 0);
  EXPECT(choose_recurrent_levels({30000, 1, 8}, 1, 64) > 0);
}

TEST(scan_chooses_no_tree_that_would_run_on_one_thread) {
  EXPECT_EQ(choose_levels({100, 1, 4}, 64), 0);
  EXPECT_EQ(choose_levels({1000, 1, 2}, 2), 0);
}

TEST(scan_wakes_no_thread_for_a_microsecond) {
  EXPECT_EQ(worthwhile_threads(1e-6, 8), 1);
  EXPECT_EQ(worthwhile_threads(1, 8), 8);
}

TEST_APART(workers_do_every_task_once) {
  for (const int threads : {1, 2, 5}) {
    std::vector<std::atomic<int>> done(100);
    parallel_for(threads, 100, [&](int64_t i) { ++done[static_cast<size_t>(i)]; });
    for (const auto& times : done) EXPECT_EQ(times.load(), 1);
  }
}

TEST_APART(workers_serve_several_callers) {
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int call = 0; call < 50; ++call) parallel_for(3, 7, [&](int64_t) { ++done; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done.load(), 4 * 50 * 7);
}

TEST_APART(workers_hand_on_what_a_task_throws) {
  for (const int threads : {1, 3}) {
    bool thrown = false;
    try {
      parallel_for(threads, 20, [](int64_t i) {
        if (i == 11) throw std::runtime_error("task 11");
      });
    } catch (const std::runtime_error& error) {
      thrown = std::string(error.what()) == "task 11";
    }
    EXPECT(thrown);
  }
}

}  // namespace ringar::test
