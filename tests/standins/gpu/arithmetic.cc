#include "arithmetic.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace standin {
namespace {

namespace nccl = ringar::nccl;

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// `value` without its last `dropped` bits, rounded to nearest even.
uint32_t rounded(uint32_t value, unsigned dropped) {
  const uint32_t half = uint32_t{1} << (dropped - 1), odd = value >> dropped & 1;
  return (value + half - 1 + odd) >> dropped;
}

struct Bfloat16 {
  uint16_t bits;

  operator float() const { return float_of(uint32_t{bits} << 16); }
  static Bfloat16 of(float value) {
    if (std::isnan(value)) return {0x7FC0};
    return {static_cast<uint16_t>(rounded(bits_of(value), 16))};
  }
};

struct Float16 {
  uint16_t bits;

  operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
    if (exponent == 31) return float_of(sign | 0x7F800000 | mantissa << 13);
    if (exponent == 0) return (sign ? -1.f : 1.f) * std::ldexp(static_cast<float>(mantissa), -24);
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
  }

  static Float16 of(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    const auto make = [sign](uint32_t rest) { return Float16{static_cast<uint16_t>(sign | rest)}; };
    if (size > 0x7F800000) return make(0x7E00);
    if (size >= 0x477FF000) return make(0x7C00);                          // rounds to infinity
    if (size >= 0x38800000) return make(rounded(size - 0x38000000, 13));  // 2^-14 and above
    return make(static_cast<uint32_t>(std::nearbyint(std::ldexp(std::fabs(value), 24))));
  }
};

// In what numbers of a type are reduced. Integers wrap, so they are unsigned there.
template <typename T, typename = void>
struct Wide {
  using type = float;
};
template <typename T>
struct Wide<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  using type = T;
};
template <typename T>
struct Wide<T, std::enable_if_t<std::is_integral_v<T>>> {
  using type = uint64_t;
};

template <typename T>
T from_wide(typename Wide<T>::type value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<T>(value);
  else
    return T::of(value);
}

template <typename T>
typename Wide<T>::type load(const std::byte* at, size_t index) {
  T value;
  std::memcpy(&value, at + index * sizeof value, sizeof value);
  return static_cast<typename Wide<T>::type>(value);
}

template <typename T>
typename Wide<T>::type combine(typename Wide<T>::type a, typename Wide<T>::type b, nccl::RedOp op) {
  if (op == nccl::kProd) return a * b;
  if (op == nccl::kSum || op == nccl::kAvg) return a + b;
  if constexpr (std::is_integral_v<T>) {
    const bool is_less = static_cast<T>(a) < static_cast<T>(b);
    return is_less == (op == nccl::kMin) ? a : b;
  } else {
    return op == nccl::kMin ? std::fmin(a, b) : std::fmax(a, b);
  }
}

template <typename T>
T average(typename Wide<T>::type sum, size_t ranks) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<T>(sum) / static_cast<T>(ranks));
  else
    return from_wide<T>(sum / static_cast<typename Wide<T>::type>(ranks));
}

template <typename T>
void reduce_as(const std::vector<const std::byte*>& inputs, std::byte* out, size_t count,
               const Reduction& reduction) {
  const auto factor = load<T>(reinterpret_cast<const std::byte*>(reduction.factor), 0);
  const auto input = [&](size_t rank, size_t index) {
    const auto value = load<T>(inputs[rank], index);
    return reduction.has_factor ? value * factor : value;
  };
  for (size_t i = 0; i < count; ++i) {
    auto sum = input(0, i);
    for (size_t rank = 1; rank < inputs.size(); ++rank)
      sum = combine<T>(sum, input(rank, i), reduction.op);
    const T result =
        reduction.op == nccl::kAvg ? average<T>(sum, inputs.size()) : from_wide<T>(sum);
    std::memcpy(out + i * sizeof result, &result, sizeof result);
  }
}

}  // namespace

#define STANDIN_TYPES(F)                \
  F(nccl::kInt8, int8_t, "int8")        \
  F(nccl::kUint8, uint8_t, "uint8")     \
  F(nccl::kInt32, int32_t, "int32")     \
  F(nccl::kUint32, uint32_t, "uint32")  \
  F(nccl::kInt64, int64_t, "int64")     \
  F(nccl::kUint64, uint64_t, "uint64")  \
  F(nccl::kFloat16, Float16, "float16") \
  F(nccl::kFloat32, float, "float32")   \
  F(nccl::kFloat64, double, "float64")  \
  F(nccl::kBfloat16, Bfloat16, "bfloat16")

size_t size_of(nccl::DataType type) {
  switch (type) {
#define STANDIN_SIZE(id, T, name) \
  case id:                        \
    return sizeof(T);
    STANDIN_TYPES(STANDIN_SIZE)
  }
  return 0;
}

const char* name_of(nccl::DataType type) {
  switch (type) {
#define STANDIN_TYPE_NAME(id, T, name) \
  case id:                             \
    return name;
    STANDIN_TYPES(STANDIN_TYPE_NAME)
  }
  return "no type";
}

void reduce(const std::vector<const std::byte*>& inputs, std::byte* out, size_t count,
            nccl::DataType type, const Reduction& reduction) {
  switch (type) {
#define STANDIN_REDUCE(id, T, name) \
  case id:                          \
    return reduce_as<T>(inputs, out, count, reduction);
    STANDIN_TYPES(STANDIN_REDUCE)
  }
}

}  // namespace standin
