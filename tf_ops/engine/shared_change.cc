#include "engine/shared_change.h"

#include "engine/default_rounding.h"
#include "engine/words.h"

namespace ringar {
namespace {

// Replaces an element by a function of it, and returns the new one. A racy one may overwrite what
// another rank has stored meanwhile.
template <bool kIsAtomic, typename Word, typename Function>
Word replace(Word* at, Function function) {
  Word old = __atomic_load_n(at, __ATOMIC_RELAXED), now = function(old);
  if constexpr (kIsAtomic) {
    while (!__atomic_compare_exchange_n(at, &old, now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      now = function(old);
  } else {
    __atomic_store_n(at, now, __ATOMIC_RELAXED);
  }
  return now;
}

template <typename Number, bool kIsAtomic>
void add_one(typename Number::Word* at, const std::byte* summand) {
  using Word = typename Number::Word;
  const Word word = load_word<Word>(summand);
  replace<kIsAtomic>(at, [word](Word old) { return Number::plus(old, word); });
}

template <typename Number, bool kIsAtomic>
void move_one(typename Number::Word* at, const std::byte* before, std::byte* after) {
  using Word = typename Number::Word;
  const Word from = load_word<Word>(before), to = load_word<Word>(after);
  const Word now = from == to
                       ? __atomic_load_n(at, __ATOMIC_RELAXED)
                       : replace<kIsAtomic>(at, [from, to](Word old) {
                           return old == from ? to : Number::plus(old, Number::minus(to, from));
                         });
  if (now != to) store_word(after, now);
}

// A gather has left the lines of these rows shared. An atomic addition waits for its line to become
// this core's alone, so several are asked for at a time.
void own_soon(const void* line) {
#if defined(__x86_64__)
  // The builtin makes it a prefetch for reading, unless all processors are known to have this one.
  // Those that lack it do nothing.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

template <typename Number, bool kIsAtomic>
void change_each(const SharedChange& change, std::byte* elements, const int64_t* rows,
                 int64_t count, int64_t stride, int64_t column, int64_t width) {
  using Word = typename Number::Word;
  std::byte* values = change.values;
  const std::byte* before = change.before;
  auto* const begin = reinterpret_cast<Word*>(elements) + column;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count) own_soon(begin + rows[i + kRowsAhead] * stride);
    Word* at = begin + rows[i] * stride;
    for (const Word* const end = at + width; at != end; ++at, values += sizeof(Word)) {
      if (before) {
        move_one<Number, kIsAtomic>(at, before, values);
        before += sizeof(Word);
      } else {
        add_one<Number, kIsAtomic>(at, values);
      }
    }
  }
}

}  // namespace

void change_rows(const SharedChange& all, std::byte* elements, const int64_t* rows, int64_t count,
                 int64_t stride, int64_t column, int64_t width) {
  const DefaultRounding rounding;
  visit_words(all.dtype, [&](auto number) {
    using Number = decltype(number);
    if (all.is_atomic)
      change_each<Number, true>(all, elements, rows, count, stride, column, width);
    else
      change_each<Number, false>(all, elements, rows, count, stride, column, width);
  });
}

void change_elements(const SharedChange& all, std::byte* elements, int64_t count) {
  constexpr int64_t kFirst = 0;
  change_rows(all, elements, &kFirst, 1, count, 0, count);
}

}  // namespace ringar
