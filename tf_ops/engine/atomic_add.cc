#include "engine/atomic_add.h"

#include "engine/default_rounding.h"
#include "engine/words.h"

namespace ringar {
namespace {

// Returns the element before the addition.
template <typename Number>
typename Number::Word add(typename Number::Word* to, typename Number::Word summand) {
  if constexpr (Number::kIsInteger) return __atomic_fetch_add(to, summand, __ATOMIC_RELAXED);
  auto old = __atomic_load_n(to, __ATOMIC_RELAXED);
  for (auto sum = Number::plus(old, summand);
       !__atomic_compare_exchange_n(to, &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);)
    sum = Number::plus(old, summand);
  return old;
}

}  // namespace

void atomic_add(DataType dtype, std::byte* to, const std::byte* summands, size_t elements) {
  const DefaultRounding rounding;
  visit_words(dtype, [&](auto number) {
    using Number = decltype(number);
    using Word = typename Number::Word;
    for (size_t i = 0; i < elements; ++i)
      add<Number>(reinterpret_cast<Word*>(to) + i, load_word<Word>(summands + i * sizeof(Word)));
  });
}

void atomic_fetch_add(DataType dtype, std::byte* to, std::byte* summand) {
  const DefaultRounding rounding;
  visit_words(dtype, [&](auto number) {
    using Number = decltype(number);
    using Word = typename Number::Word;
    store_word(summand, add<Number>(reinterpret_cast<Word*>(to), load_word<Word>(summand)));
  });
}

}  // namespace ringar
