#include "engine/atomic_add.h"

#include <cstdint>
#include <cstring>

#include "engine/default_rounding.h"
#include "engine/status.h"

namespace ringar {
namespace {

// Of integers of either sign: they add alike.
template <typename Number>
struct Integer {
  using Word = Number;
  static Word add(Word* to, Word summand) {
    return __atomic_fetch_add(to, summand, __ATOMIC_RELAXED);
  }
};

template <typename Number, typename Bits>
struct Floating {
  using Word = Bits;
  static Word add(Word* to, Word summand) {
    Word old = __atomic_load_n(to, __ATOMIC_RELAXED);
    for (Word sum = plus(old, summand);
         !__atomic_compare_exchange_n(to, &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);)
      sum = plus(old, summand);
    return old;
  }

 private:
  static Number number(Word bits) {
    Number value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static Word plus(Word a, Word b) {
    const Number sum = number(a) + number(b);
    Word bits;
    std::memcpy(&bits, &sum, sizeof bits);
    return bits;
  }
};

template <typename Visitor>
void visit(DataType dtype, Visitor visitor) {
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
      RINGAR_CHECK(!"a dtype without atomic additions");
  }
}

template <typename Word>
Word load(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

}  // namespace

void atomic_add(DataType dtype, std::byte* to, const std::byte* summands, size_t elements) {
  const DefaultRounding rounding;
  visit(dtype, [&](auto number) {
    using Word = typename decltype(number)::Word;
    for (size_t i = 0; i < elements; ++i)
      number.add(reinterpret_cast<Word*>(to) + i, load<Word>(summands + i * sizeof(Word)));
  });
}

void atomic_fetch_add(DataType dtype, std::byte* to, std::byte* summand) {
  const DefaultRounding rounding;
  visit(dtype, [&](auto number) {
    using Word = typename decltype(number)::Word;
    const Word old = number.add(reinterpret_cast<Word*>(to), load<Word>(summand));
    std::memcpy(summand, &old, sizeof old);
  });
}

}  // namespace ringar
