// The arithmetic: every dtype, op and instruction set against the serial reference, bit for bit.

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstring>
#include <initializer_list>
#include <limits>

#include "check.h"
#include "engine/atomic_add.h"
#include "engine/cpu_level.h"
#include "engine/reduce.h"
#include "engine/reduce_levels.h"
#include "engine/shared_change.h"
#include "kernel_levels.h"
#include "reference.h"

namespace ringar::test {
namespace {

struct Level {
  const char* name;
  void (*run)(DataType, ReduceOp, const KernelCall&);
};

// Those that this machine can run; the first one is the baseline.
std::vector<Level> levels() {
  std::vector<Level> list{{"baseline", reduce_baseline}};
#if defined(__x86_64__)
  if (has_avx2()) list.push_back({"avx2", reduce_avx2});
  if (has_avx512()) list.push_back({"avx512", reduce_avx512});
#elif defined(__aarch64__)
  list.push_back({"neon", reduce_neon});
#endif
  return list;
}

std::vector<DataType> reducible() {
  std::vector<DataType> all;
  for (int i = 0; i < static_cast<int>(DataType::kCount); ++i)
    if (is_reducible(static_cast<DataType>(i))) all.push_back(static_cast<DataType>(i));
  return all;
}

struct Sample {
  DataType dtype;
  ReduceOp op;
  int count;
  size_t elements;
  double prescale = 1.0, postscale = 1.0;
  bool in_place = false;
  size_t offset = 0;  // elements off the alignment
};

std::string describe(const Sample& s, const char* level) {
  return std::string(level) + " " + std::string(name_of(s.dtype)) + " " +
         std::string(name_of(s.op)) + " of " + std::to_string(s.count) + " x " +
         std::to_string(s.elements) + ", prescale " + std::to_string(s.prescale) + ", postscale " +
         std::to_string(s.postscale) + (s.in_place ? ", in place" : "") + ", offset " +
         std::to_string(s.offset);
}

std::vector<Bytes> terms_of(const Sample& s) {
  std::vector<Bytes> terms;
  for (int t = 0; t < s.count; ++t)
    terms.push_back(random_bytes(s.dtype, s.elements, static_cast<uint64_t>(t) + 17));
  return terms;
}

Bytes run(const Level& level, const Sample& s, std::vector<Bytes> terms) {
  const size_t size = size_of(s.dtype), skip = s.offset * size, bytes = s.elements * size;
  constexpr size_t kGuard = 64;
  std::vector<const std::byte*> sources;
  for (Bytes& term : terms) {
    term.insert(term.begin(), skip, std::byte{0});
    sources.push_back(term.data() + skip);
  }
  Bytes out(skip + bytes + kGuard, std::byte{0x5a});
  std::byte* to = out.data() + skip;
  const size_t last = terms.size() - 1;
  if (s.in_place) to = const_cast<std::byte*>(sources[last]);
  level.run(s.dtype, s.op, {sources.data(), s.count, s.prescale, s.postscale, to, s.elements});
  for (size_t i = 0; i < kGuard; ++i) EXPECT(out[skip + bytes + i] == std::byte{0x5a});
  return {to, to + bytes};
}

void check(const Sample& s) {
  const std::vector<Bytes> terms = terms_of(s);
  const Bytes expected = reduced(s.dtype, s.op, terms, s.prescale, s.postscale);
  for (const Level& level : levels()) {
    const int64_t at = first_difference(s.dtype, run(level, s, terms), expected);
    if (at >= 0) fail(__FILE__, __LINE__, describe(s, level.name) + " at " + std::to_string(at));
  }
}

const ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

TEST(reduce_every_dtype_op_and_length) {
  for (DataType dtype : reducible())
    for (ReduceOp op : kOps)
      for (size_t elements : {0, 1, 7, 8, 31, 511, 512, 513, 1023, 4099})
        for (int count : {1, 2, 3, 8}) check({dtype, op, count, elements});
}

TEST(reduce_in_place_and_unaligned) {
  for (DataType dtype : reducible())
    for (int count : {1, 2, 5})
      for (size_t offset : {0, 1, 3})
        for (bool in_place : {false, true}) {
          Sample s{dtype, ReduceOp::kSum, count, 1041};
          s.in_place = in_place;
          s.offset = offset;
          check(s);
        }
}

TEST(reduce_scales_floats) {
  for (DataType dtype : reducible())
    if (is_floating(dtype))
      for (ReduceOp op : kOps)
        for (int count : {1, 2, 3})
          for (auto [pre, post] : {std::pair{0.1, 1.0}, {1.0, 1.0 / 3}, {-2.5, 1e-3}})
            check({dtype, op, count, 777, pre, post});
}

// All 65536 values of a narrow type, alone (through a scaling that changes nothing but goes through
// the accumulator) and added to its neighbour.
void check_all_narrow(DataType dtype) {
  constexpr size_t kAll = 65536;
  Bytes all(2 * kAll), shifted(2 * kAll), zeros(2 * kAll);
  for (size_t i = 0; i < kAll; ++i) {
    const auto value = static_cast<uint16_t>(i), next = static_cast<uint16_t>(i + 1);
    std::memcpy(all.data() + 2 * i, &value, 2);
    std::memcpy(shifted.data() + 2 * i, &next, 2);
  }
  for (const std::vector<Bytes>& terms :
       {std::vector<Bytes>{all, shifted}, std::vector<Bytes>{all, zeros}})
    for (double scale : {1.0, 0.5, 1.0 / 3, 3e-5, 1e4}) {
      const Bytes expected = reduced(dtype, ReduceOp::kSum, terms, 1.0, scale);
      Sample s{dtype, ReduceOp::kSum, 2, kAll};
      s.postscale = scale;
      for (const Level& level : levels()) {
        const int64_t at = first_difference(dtype, run(level, s, terms), expected);
        if (at >= 0)
          fail(__FILE__, __LINE__, describe(s, level.name) + " at " + std::to_string(at));
      }
    }
}

TEST(reduce_every_float16) {
  check_all_narrow(DataType::kFloat16);
}
TEST(reduce_every_bfloat16) {
  check_all_narrow(DataType::kBfloat16);
}

// A NaN keeps its sign and payload, and instruction sets do not differ in that: bits, not values.
TEST(reduce_nan_has_the_same_bits_on_every_level) {
  for (DataType dtype : reducible()) {
    if (!is_floating(dtype)) continue;
    for (ReduceOp op : kOps) {
      Sample s{dtype, op, 2, 1037};
      std::vector<Bytes> terms{random_bytes(dtype, s.elements, 5, 256),
                               random_bytes(dtype, s.elements, 6, 0)};
      const Bytes baseline = run(levels()[0], s, terms);
      for (const Level& level : levels())
        if (run(level, s, terms) != baseline)
          fail(__FILE__, __LINE__, describe(s, level.name) + ": other bits than baseline");
    }
  }
}

// Where an element lies must not matter: the same value at every place of a vector and its tail.
TEST(reduce_gives_the_same_bits_at_every_place) {
  constexpr size_t kElements = 75;
  for (DataType dtype : reducible())
    for (ReduceOp op : kOps)
      for (uint64_t seed = 0; seed < 40; ++seed) {
        const size_t size = size_of(dtype);
        std::vector<Bytes> terms;
        for (uint64_t t = 0; t < 2; ++t) {
          const Bytes block = random_bytes(dtype, 1, 2 * seed + t, t == 0 ? 256 : 0);
          Bytes& term = terms.emplace_back();
          for (size_t i = 0; i < kElements; ++i)
            term.insert(term.end(), block.begin(), block.end());
        }
        Sample s{dtype, op, 2, kElements};
        for (const Level& level : levels()) {
          const Bytes result = run(level, s, terms);
          for (size_t i = 1; i < kElements; ++i)
            if (std::memcmp(result.data(), result.data() + i * size, size) != 0)
              fail(__FILE__, __LINE__, describe(s, level.name) + " at " + std::to_string(i));
        }
      }
}

// As TensorFlow's threads do, for the time that this object lives.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    set(saved_ | (uint64_t{1} << 24));
  }
  ~FlushDenormals() { set(saved_); }
#endif

 private:
#if defined(__aarch64__)
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
  uint64_t saved_;
#else
  unsigned saved_;
#endif
};

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

TEST(sums_keep_denormals_whatever_the_thread_does) {
  const float least = std::numeric_limits<float>::denorm_min();
  const std::vector<float> term(100, least);
  std::vector<float> sum(term.size()), atomic = term, racy = term, moved = term;
  std::vector<float> summands = term, zeros(term.size()), now = term;  // a move by `least`
  const auto* bytes = reinterpret_cast<const std::byte*>(term.data());
  const std::byte* const sources[] = {bytes, bytes};
  volatile float after = 0;
  {
    const FlushDenormals flush;
    reduce({DataType::kFloat32, ReduceOp::kSum}, sources, 2, bytes_of(sum), sum.size());
    atomic_add(DataType::kFloat32, bytes_of(atomic), bytes, atomic.size());
    change_elements({DataType::kFloat32, false, bytes_of(summands), nullptr}, bytes_of(racy), 100);
    change_elements({DataType::kFloat32, true, bytes_of(now), bytes_of(zeros)}, bytes_of(moved),
                    100);
    const volatile float value = least;
    after = value + value;
  }
  EXPECT_EQ(after, 0.0f);  // the thread's mode is what it was
  for (const auto* sums : {&sum, &atomic, &racy, &moved})
    for (const float x : *sums) EXPECT(x == 2 * least);
}

TEST(reduce_dispatches_to_a_known_level) {
  bool is_known = false;
  for (const Level& level : levels())
    is_known = is_known || std::string(level.name) == cpu_level_name();
  EXPECT(is_known);
}

}  // namespace
}  // namespace ringar::test
