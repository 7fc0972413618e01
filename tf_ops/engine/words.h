// Elements as words that the processor changes at once, by the bits of a number.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/status.h"
#include "engine/types.h"

namespace ringar {

template <typename Word>
Word load_word(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

template <typename Word>
void store_word(std::byte* to, Word word) {
  std::memcpy(to, &word, sizeof word);
}

// Integers of either sign: they add and subtract alike.
template <typename Bits>
struct Integer {
  using Word = Bits;
  static constexpr bool kIsInteger = true;
  static Word plus(Word a, Word b) { return a + b; }
  static Word minus(Word a, Word b) { return a - b; }
};

template <typename Number, typename Bits>
struct Floating {
  using Word = Bits;
  static constexpr bool kIsInteger = false;
  static Word plus(Word a, Word b) { return bits(number(a) + number(b)); }
  static Word minus(Word a, Word b) { return bits(number(a) - number(b)); }

 private:
  static Number number(Word word) {
    Number value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  static Word bits(Number value) {
    Word word;
    std::memcpy(&word, &value, sizeof word);
    return word;
  }
};

// Calls `visitor` with an Integer or a Floating of the dtype.
template <typename Visitor>
void visit_words(DataType dtype, Visitor visitor) {
  switch (dtype) {
    case DataType::kFloat32:
      return visitor(Floating<float, uint32_t>());
    case DataType::kFloat64:
      return visitor(Floating<double, uint64_t>());
    case DataType::kInt32:
    case DataType::kUint32:
      return visitor(Integer<uint32_t>());
    case DataType::kInt64:
    case DataType::kUint64:
      return visitor(Integer<uint64_t>());
    default:
      RINGAR_CHECK(!"a dtype whose elements no machine changes at once");
  }
}

}  // namespace ringar
