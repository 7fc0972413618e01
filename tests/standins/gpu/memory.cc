#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "standin.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#endif

namespace standin {
namespace {

constexpr size_t kAlignment = 256;  // as of cuMemAlloc
constexpr size_t kGuard = 256;      // behind each block
constexpr size_t kMost = size_t{4} << 30;
constexpr size_t kHeldBack = size_t{16} << 20;
constexpr unsigned char kFresh = 0xEE, kBehind = 0xA5, kFreed = 0xDD;

bool is_all(const void* begin, size_t bytes, unsigned char value) {
  const auto* const at = static_cast<const unsigned char*>(begin);
  return bytes == 0 || (at[0] == value && std::memcmp(at, at + 1, bytes - 1) == 0);
}

}  // namespace

void* Memory::allocate(Kind kind, size_t bytes, int device, bool is_mapped) {
  void* memory = nullptr;
  if (bytes > kMost || posix_memalign(&memory, kAlignment, bytes + kGuard) != 0) return nullptr;
  auto* const begin = static_cast<unsigned char*>(memory);
  std::memset(begin, kFresh, bytes);
  std::memset(begin + bytes, kBehind, kGuard);
  ASAN_POISON_MEMORY_REGION(begin + bytes, kGuard);
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_[reinterpret_cast<uintptr_t>(begin)] = {kind, bytes, device, is_mapped, true};
  return memory;
}

std::string Memory::free(Kind kind, void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (entry == blocks_.end()) return text("%p was not allocated", memory);
  Block& block = entry->second;
  if (!block.is_live) return text("%p was freed before", memory);
  if (block.kind != kind) return text("%p was allocated by another function", memory);
  auto* const begin = static_cast<unsigned char*>(memory);
  ASAN_UNPOISON_MEMORY_REGION(begin + block.bytes, kGuard);
  if (!is_all(begin + block.bytes, kGuard, kBehind))
    misuse("memory", text("something was written behind %p, %zu bytes", memory, block.bytes));
  block.is_live = false;
  std::memset(begin, kFreed, block.bytes + kGuard);
  ASAN_POISON_MEMORY_REGION(begin, block.bytes + kGuard);
  freed_.push_back(entry->first);
  freed_bytes_ += block.bytes;
  while (freed_bytes_ > kHeldBack) {
    let_go(freed_.front());
    freed_.pop_front();
  }
  return "";
}

void Memory::let_go(uintptr_t begin) {
  auto* const memory = reinterpret_cast<void*>(begin);
  const auto entry = blocks_.find(begin);
  const size_t bytes = entry->second.bytes;
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes + kGuard);
  if (!is_all(memory, bytes + kGuard, kFreed))
    misuse("memory", text("%p was written after it was freed", memory));
  freed_bytes_ -= bytes;
  blocks_.erase(entry);
  std::free(memory);
}

Memory::Blocks::const_iterator Memory::find(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto entry = blocks_.upper_bound(address);
  if (entry == blocks_.begin()) return blocks_.end();
  --entry;
  // An empty range may begin at the end of a block.
  const size_t room = entry->second.bytes + kGuard;
  return address < entry->first + room ? entry : blocks_.end();
}

std::string Memory::fault(const void* begin, size_t bytes, int device) const {
  if (bytes == 0) return "";
  if (!begin) return text("%zu bytes at null", bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = find(begin);
  if (entry == blocks_.end()) return "";
  const Block& block = entry->second;
  const size_t offset = reinterpret_cast<uintptr_t>(begin) - entry->first;
  const std::string range = text("%zu bytes at %p", bytes, begin);
  if (!block.is_live) return range + ", which was freed";
  if (offset + bytes > block.bytes)
    return range + text(", byte %zu of an allocation of %zu", offset, block.bytes);
  if (device >= 0 && block.device >= 0 && block.device != device && block.kind != kHost)
    return range + text(", memory of device %d, not of device %d", block.device, device);
  return "";
}

bool Memory::is_host(const void* pointer, bool is_mapped) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = find(pointer);
  return entry != blocks_.end() && entry->second.is_live && entry->second.kind == kHost &&
         (entry->second.is_mapped || !is_mapped);
}

size_t Memory::bytes(Kind kind, int device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t sum = 0;
  for (const auto& [begin, block] : blocks_)
    if (block.is_live && block.kind == kind && (device < 0 || block.device == device))
      sum += block.bytes;
  return sum;
}

void Memory::look_after() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const uintptr_t begin : freed_) {
    auto* const memory = reinterpret_cast<unsigned char*>(begin);
    const size_t bytes = blocks_.at(begin).bytes + kGuard;
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    if (!is_all(memory, bytes, kFreed)) {
      misuse("memory", text("%p was written after it was freed", memory));
      std::memset(memory, kFreed, bytes);
    }
    ASAN_POISON_MEMORY_REGION(memory, bytes);
  }
}

// Never destroyed: threads may still use it when the process ends.
Memory& memory() {
  static Memory& instance = *new Memory;
  return instance;
}

}  // namespace standin
