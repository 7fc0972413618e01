// Changes of elements that other threads and processes change at the same time, in rows of a
// matrix. Atomic ones lose no other atomic one, racy ones may. Elements of 4 and 8 bytes
// (atomic_add.h).
//
// A change is a summand, or a move. A move tells the value before and the one after: an element
// that still has the first gets the second, bit for bit, and to another one their difference is
// added. So a rank that is alone with an element computes what one process would. Where both values
// are equal, nothing is written, and the cache line stays shared.

#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/types.h"

namespace ringar {

// Another core may have written the next rows last: the lines of so many are asked for together.
constexpr int64_t kRowsAhead = 8;

struct SharedChange {
  DataType dtype;
  bool is_atomic;
  std::byte* values;        // summands; or the values after, which become those that are there
  const std::byte* before;  // null: `values` are summands
};

// `rows` are those of a matrix at `elements` whose rows have `stride` elements; `width` ones change
// from `column` on. `change` has those of the first row, then those of the second, and so on.
void change_rows(const SharedChange& change, std::byte* elements, const int64_t* rows,
                 int64_t count, int64_t stride, int64_t column, int64_t width);
// `count` elements that lie side by side.
void change_elements(const SharedChange& change, std::byte* elements, int64_t count);

}  // namespace ringar
