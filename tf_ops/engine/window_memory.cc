#include "engine/window_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "engine/tuning.h"

namespace ringar {
namespace {

uint64_t part_of_addresses(const Layout& layout, int size) {
  const uint64_t all = layout.messages() - layout.windows();
  return all / static_cast<uint64_t>(size) / page_bytes() * page_bytes();
}

Status no_addresses(size_t bytes) {
  return {RINGAR_OUT_OF_MEMORY, "expected addresses for " + std::to_string(bytes) +
                                    " bytes of a window, received none; close windows that are no "
                                    "longer used"};
}

}  // namespace

WindowSpace::WindowSpace(const Layout& layout, int place, int size)
    : begin_(layout.windows() + part_of_addresses(layout, size) * static_cast<uint64_t>(place)),
      end_(begin_ + part_of_addresses(layout, size)) {}

std::optional<uint64_t> WindowSpace::take(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t at = begin_;
  for (const auto& [offset, length] : allocations_) {
    if (offset - at >= bytes) break;
    at = offset + length;
  }
  if (end_ - at < bytes) return {};
  allocations_[at] = bytes;
  return at;
}

void WindowSpace::give(uint64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  allocations_.erase(offset);
}

WindowMemory::WindowMemory(std::byte* data, size_t bytes, uint64_t offset,
                           std::shared_ptr<WindowSpace> space)
    : data_(data), bytes_(bytes), offset_(offset), space_(std::move(space)), owner_(getpid()) {}

WindowMemory::~WindowMemory() {
  const bool owns = space_ && getpid() == owner_;
  if (owns) madvise(data_, bytes_, MADV_REMOVE);
  munmap(data_, bytes_);
  if (owns) space_->give(offset_);
}

Status WindowMemory::make(SharedSegment* segment, std::shared_ptr<WindowSpace> space, size_t bytes,
                          std::unique_ptr<WindowMemory>* memory) {
  bytes = std::max(bytes, page_bytes());
  if (!segment) {
    void* const address =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return no_addresses(bytes);
    memory->reset(new WindowMemory(static_cast<std::byte*>(address), bytes, 0, nullptr));
    return {};
  }
  const std::optional<uint64_t> offset = space->take(bytes);
  if (!offset) return no_addresses(bytes);
  std::byte* const data = segment->map(*offset, bytes);
  if (data) memory->reset(new WindowMemory(data, bytes, *offset, space));
  if (!data) space->give(*offset);
  if (!data) return no_addresses(bytes);
  return segment->provide(*offset, bytes)
             ? Status()
             : Status(RINGAR_OUT_OF_MEMORY, "expected " + std::to_string(bytes) +
                                                " bytes of shared memory for its part, " +
                                                segment->shortage(errno));
}

Status WindowMemory::map(SharedSegment& segment, uint64_t offset, size_t bytes,
                         std::unique_ptr<WindowMemory>* memory) {
  bytes = std::max(bytes, page_bytes());
  std::byte* const data = segment.map(offset, bytes);
  if (!data) return no_addresses(bytes);
  memory->reset(new WindowMemory(data, bytes, offset, nullptr));
  return {};
}

}  // namespace ringar
