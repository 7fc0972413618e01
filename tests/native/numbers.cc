#include "numbers.h"

#include "check.h"

namespace ringar::test {
namespace {

// splitmix64: the library's generators take longer.
struct Random {
  uint64_t state;
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
};

// A number in [0.5, 2) with either sign, of which a product over some ranks neither vanishes nor
// overflows.
double ordinary(uint64_t raw) {
  const double magnitude = 0.5 + 1.5 * static_cast<double>(raw >> 11) / (uint64_t{1} << 53);
  return raw & 1 ? magnitude : -magnitude;
}

uint64_t bits_of(DataType dtype, double value) {
  uint64_t bits = 0;
  if (dtype == DataType::kFloat64) {
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  }
  const float fp32 = static_cast<float>(value);
  uint32_t word;
  std::memcpy(&word, &fp32, sizeof word);
  if (dtype == DataType::kFloat32) return word;
  if (dtype == DataType::kBfloat16) return word >> 16;
  // [0.5, 2) is normal in float16: the exponent's bias is smaller by 112.
  return (word >> 16 & 0x8000u) | (((word & 0x7fffffffu) >> 13) - (112u << 10));
}

// Elements of so many bytes, each from `make`, which fills two words.
template <size_t kBytes, typename Make>
void fill_elements(Bytes& bytes, Make make) {
  for (size_t at = 0; at < bytes.size(); at += kBytes) {
    uint64_t words[2] = {};
    make(words);
    std::memcpy(bytes.data() + at, words, kBytes);
  }
}

template <typename Make>
Bytes elements_of(DataType dtype, size_t elements, Make make) {
  Bytes bytes(elements * size_of(dtype));
  switch (size_of(dtype)) {
    case 1:
      fill_elements<1>(bytes, make);
      break;
    case 2:
      fill_elements<2>(bytes, make);
      break;
    case 4:
      fill_elements<4>(bytes, make);
      break;
    case 8:
      fill_elements<8>(bytes, make);
      break;
    default:
      fill_elements<16>(bytes, make);
  }
  return bytes;
}

}  // namespace

Bytes random_bytes(DataType dtype, size_t elements, uint64_t seed, int special) {
  Random random{seed * 0x100000001b3u};
  return elements_of(dtype, elements, [&](uint64_t* words) {
    const uint64_t raw[2] = {random(), random()};
    if (dtype == DataType::kBool) {
      words[0] = raw[0] & 1;
    } else if (!is_floating(dtype) || static_cast<int>(raw[1] % 256) < special) {
      std::memcpy(words, raw, sizeof raw);
    } else {
      words[0] = bits_of(dtype, ordinary(raw[0]));
    }
  });
}

Bytes small_numbers(DataType dtype, size_t elements, uint64_t seed) {
  if (!is_floating(dtype)) return random_bytes(dtype, elements, seed);
  Random random{seed * 0x100000001b3u};
  const uint64_t numbers[] = {bits_of(dtype, 0.5), bits_of(dtype, 1), bits_of(dtype, -0.5),
                              bits_of(dtype, -1)};
  return elements_of(dtype, elements, [&](uint64_t* words) { words[0] = numbers[random() % 4]; });
}

Bytes copies_of(float value, size_t elements) {
  Bytes bytes(elements * sizeof value);
  for (size_t at = 0; at < bytes.size(); at += sizeof value)
    std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

void expect_copies_of(float value, const Bytes& floats) {
  for (size_t at = 0; at < floats.size(); at += sizeof value) {
    float received;
    std::memcpy(&received, floats.data() + at, sizeof received);
    if (received != value) EXPECT_EQ(received, value);
  }
}

}  // namespace ringar::test
