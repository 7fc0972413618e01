// The memory of the parts of windows: in the shared segment, or private where a rank is alone on
// its host.
//
// Each rank of a host has addresses of its own there, and tells the others where a part is. Its
// pages are given back with the last reference in its process, which may come after the engine's
// end.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/shared_segment.h"
#include "engine/status.h"

namespace ringar {

// The addresses of one rank's parts in the shared segment.
class WindowSpace {
 public:
  WindowSpace(const Layout& layout, int place, int size);
  // The lowest ones that are free, in whole pages; none if there are not so many.
  std::optional<uint64_t> take(size_t bytes);
  void give(uint64_t offset);

 private:
  std::mutex mutex_;
  const uint64_t begin_, end_;
  std::map<uint64_t, size_t> allocations_;
};

class WindowMemory {
 public:
  ~WindowMemory();
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;

  // This rank's part, with pages, all zero. `segment` may be null, and `space` with it.
  static Status make(SharedSegment* segment, std::shared_ptr<WindowSpace> space, size_t bytes,
                     std::unique_ptr<WindowMemory>* memory);
  // That of another rank.
  static Status map(SharedSegment& segment, uint64_t offset, size_t bytes,
                    std::unique_ptr<WindowMemory>* memory);

  std::byte* data() const { return data_; }
  uint64_t offset() const { return offset_; }

 private:
  WindowMemory(std::byte* data, size_t bytes, uint64_t offset, std::shared_ptr<WindowSpace> space);

  std::byte* const data_;
  const size_t bytes_;
  const uint64_t offset_;
  const std::shared_ptr<WindowSpace> space_;  // null: another rank's, or not in the segment
  const pid_t owner_;  // a forked child must not give back its parent's pages
};

}  // namespace ringar
