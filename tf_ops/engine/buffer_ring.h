// Where the buffers of successive steps lie, in a ring of memory that one rank writes and others
// read.
//
// A store to a line that another core has in its cache must first take the line from there. So
// buffers of middle size go round a ring that is longer than that cache: when a line is written
// again, the reader's core has let go of it, and it comes from a cache that the cores share. A core
// of an AMD EPYC (family 25, model 17), which has 1 MiB of its own, writes buffers of 32 to 256 KiB
// at 9 GB/s if there are two of them, and at 36 GB/s if they go round 2 MiB.
//
// Short buffers stay in two places: they cost latency only, and new lines would add to it. Long
// ones stay in a few: they belong to long arrays, which need the caches themselves.

#pragma once

#include <algorithm>
#include <cstddef>

namespace ringar {

class BufferRing {
 public:
  // A ring of `bytes`, in whole lines, or of three times `longest` if that is more. No buffer is
  // longer than `longest`, which is a number of whole lines.
  BufferRing(size_t longest, size_t bytes)
      : longest_(longest), bytes_(std::max(bytes / kLine * kLine, 3 * longest)) {}

  size_t bytes() const { return bytes_; }
  size_t place() const { return place_; }
  size_t last_place() const { return last_place_; }

  // Moves on to the next buffer. At most `bytes` of this one were written; the next one overlaps
  // none of them. Ranks that call this with equal numbers get equal places.
  void advance(size_t bytes) {
    last_place_ = place_;
    if (bytes >= longest_)
      place_ = next_of(std::max(kLong / longest_, size_t{2}));
    else if (bytes < kShort)
      place_ = next_of(2);
    else
      place_ = (place_ + bytes + kLine - 1) / kLine * kLine;
    // At place 0 it ends before this one begins, since the ring has room for three.
    if (place_ + longest_ > bytes_) place_ = 0;
  }

 private:
  static constexpr size_t kShort = size_t{8} << 10;  // bytes of a buffer
  static constexpr size_t kLong = size_t{1} << 20;   // of the places where long ones lie
  static constexpr size_t kLine = 128;               // with the neighbour that is prefetched

  // The next of so many places, which follow each other from the begin of the ring.
  size_t next_of(size_t places) const {
    return place_ >= (places - 1) * longest_ ? 0 : place_ + longest_;
  }

  const size_t longest_, bytes_;
  size_t place_ = 0, last_place_ = 0;
};

}  // namespace ringar
