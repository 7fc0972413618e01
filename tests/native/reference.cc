#include "reference.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"

namespace ringar::test {
namespace {

template <typename T>
T read(const Bytes& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof value);
  return value;
}

// Rounds to `digits` binary digits, ties to even; below 2^least the step stays that of 2^least.
double round_to(double x, int digits, int least) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), least);
  const double step = std::ldexp(1.0, exponent - (digits - 1));
  return std::nearbyint(x / step) * step;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

template <typename T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::kSum) return a + b;
    if (op == ReduceOp::kProduct) return a * b;
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  } else {
    // Through the widest unsigned type: wraps around, as NumPy does.
    const auto wide_a = static_cast<uint64_t>(a), wide_b = static_cast<uint64_t>(b);
    if (op == ReduceOp::kSum) return static_cast<T>(wide_a + wide_b);
    if (op == ReduceOp::kProduct) return static_cast<T>(wide_a * wide_b);
  }
  if (op == ReduceOp::kMin) return a < b ? a : b;
  return a > b ? a : b;
}

template <typename Stored, typename Acc, typename Load, typename Store>
Bytes reduce_as(ReduceOp op, const std::vector<Bytes>& terms, double prescale, double postscale,
                Load load, Store store) {
  Bytes result(terms[0].size());
  for (size_t i = 0; i < result.size() / sizeof(Stored); ++i) {
    Acc sum{};
    for (size_t t = 0; t < terms.size(); ++t) {
      Acc term = load(read<Stored>(terms[t], i));
      if (prescale != 1.0) term = static_cast<Acc>(term * static_cast<Acc>(prescale));
      sum = t == 0 ? term : combine(op, sum, term);
    }
    if (postscale != 1.0) sum = static_cast<Acc>(sum * static_cast<Acc>(postscale));
    const Stored out = store(sum);
    std::memcpy(result.data() + i * sizeof out, &out, sizeof out);
  }
  return result;
}

template <typename T>
Bytes reduce_plainly(ReduceOp op, const std::vector<Bytes>& terms, double pre, double post) {
  const auto same = [](T x) { return x; };
  return reduce_as<T, T>(op, terms, pre, post, same, same);
}

bool is_nan(DataType dtype, const Bytes& bytes, size_t i) {
  switch (dtype) {
    case DataType::kFloat16:
      return std::isnan(from_half(read<uint16_t>(bytes, i)));
    case DataType::kBfloat16:
      return std::isnan(from_bfloat(read<uint16_t>(bytes, i)));
    case DataType::kFloat32:
      return std::isnan(read<float>(bytes, i));
    case DataType::kFloat64:
      return std::isnan(read<double>(bytes, i));
    default:
      return false;
  }
}

}  // namespace

double from_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value;
  if (exponent == 31)
    value = fraction ? std::numeric_limits<double>::quiet_NaN()
                     : std::numeric_limits<double>::infinity();
  else if (exponent == 0)
    value = std::ldexp(fraction, -24);
  else
    value = std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

uint16_t to_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00 | (bits_of(value) >> 13 & 511));
  const double x = std::isinf(value) ? HUGE_VAL : round_to(std::fabs(value), 11, -14);
  if (x > 65504) return sign | 0x7c00;
  if (x < std::ldexp(1.0, -14)) return sign | static_cast<uint16_t>(std::ldexp(x, 24));
  const int exponent = std::ilogb(x);
  const auto fraction = static_cast<uint16_t>(std::ldexp(x, 10 - exponent) - 1024);
  return static_cast<uint16_t>(sign | (exponent + 15) << 10 | fraction);
}

float from_bfloat(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

uint16_t to_bfloat(float value) {
  if (std::isnan(value)) return static_cast<uint16_t>((bits_of(value) | 0x400000) >> 16);
  if (std::isinf(value)) return static_cast<uint16_t>(bits_of(value) >> 16);
  // Beyond the largest number the conversion gives an infinity, as it should.
  const double x = round_to(value, 8, -126);
  const float magnitude = std::fabs(x) >= std::ldexp(1.0, 128)
                              ? std::copysign(std::numeric_limits<float>::infinity(), value)
                              : static_cast<float>(x);
  return static_cast<uint16_t>(bits_of(std::copysign(magnitude, value)) >> 16);
}

Bytes reduced(DataType dtype, ReduceOp op, const std::vector<Bytes>& terms, double pre,
              double post) {
  switch (dtype) {
    case DataType::kFloat16: {
      const auto load = [](uint16_t x) { return static_cast<float>(from_half(x)); };
      return reduce_as<uint16_t, float>(op, terms, pre, post, load, to_half);
    }
    case DataType::kBfloat16:
      return reduce_as<uint16_t, float>(op, terms, pre, post, from_bfloat, to_bfloat);
    case DataType::kFloat32:
      return reduce_plainly<float>(op, terms, pre, post);
    case DataType::kFloat64:
      return reduce_plainly<double>(op, terms, pre, post);
    case DataType::kInt8:
      return reduce_plainly<int8_t>(op, terms, pre, post);
    case DataType::kUint8:
      return reduce_plainly<uint8_t>(op, terms, pre, post);
    case DataType::kInt32:
      return reduce_plainly<int32_t>(op, terms, pre, post);
    case DataType::kInt64:
      return reduce_plainly<int64_t>(op, terms, pre, post);
    default:
      fail(__FILE__, __LINE__, "not a reducible dtype");
  }
}

int64_t first_difference(DataType dtype, const Bytes& received, const Bytes& expected) {
  EXPECT_EQ(received.size(), expected.size());
  if (same_bytes(received, expected)) return -1;
  const size_t size = size_of(dtype);
  for (size_t i = 0; i < expected.size() / size; ++i) {
    if (std::memcmp(received.data() + i * size, expected.data() + i * size, size) == 0) continue;
    if (is_nan(dtype, expected, i) && is_nan(dtype, received, i)) continue;
    return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace ringar::test
