// Many arrays as one, without copying them together: a bucket of gradients is read and written
// block by block, each block wherever it lies.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "engine/copy.h"

namespace ringar {

class BufferList {
 public:
  void append(const std::byte* input, std::byte* output, size_t bytes) {
    if (bytes == 0) return;
    parts_.push_back({input, output, size_ + bytes});
    size_ += bytes;
  }

  void clear() {
    parts_.clear();
    size_ = 0;
  }

  size_t size() const { return size_; }

  // Where the byte at `position` lies.
  struct Place {
    const std::byte* input;
    std::byte* output;
  };
  Place at(size_t position) const {
    Place place{};
    for_each(position, position + 1,
             [&](const std::byte* input, std::byte* output, size_t, size_t) {
               place = {input, output};
             });
    return place;
  }

  // Calls visit(input, output, bytes, offset from `begin`) for each contiguous part of the range.
  template <typename Visit>
  void for_each(size_t begin, size_t end, Visit visit) const {
    if (begin >= end) return;
    auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                                 [](size_t at, const Part& p) { return at < p.end; });
    for (size_t at = begin; at < end; ++part) {
      const size_t start = part == parts_.begin() ? 0 : (part - 1)->end;
      const size_t stop = std::min(end, part->end);
      std::byte* output = part->output ? part->output + (at - start) : nullptr;
      visit(part->input ? part->input + (at - start) : nullptr, output, stop - at, at - begin);
      at = stop;
    }
  }

  // Copies the inputs of [begin, end) to `to` in the shared segment; not where there is none.
  void gather(size_t begin, size_t end, std::byte* to) const {
    for_each(begin, end, [&](const std::byte* input, std::byte*, size_t bytes, size_t offset) {
      if (input) copy_to_shared(to + offset, input, bytes);
    });
  }

  // Copies `from` to the outputs of [begin, end); not where there is none. Past the caches, if so
  // asked, except where an output is its input, whose lines are in cache.
  void scatter(size_t begin, size_t end, const std::byte* from, bool past_caches = false) const {
    for_each(begin, end,
             [&](const std::byte* input, std::byte* output, size_t bytes, size_t offset) {
               if (output && past_caches && output != input)
                 copy_past_caches(output, from + offset, bytes);
               else if (output)
                 std::memcpy(output, from + offset, bytes);
             });
  }

 private:
  struct Part {
    const std::byte* input;
    std::byte* output;
    size_t end;  // where it ends in the whole
  };
  std::vector<Part> parts_;
  size_t size_ = 0;
};

}  // namespace ringar
