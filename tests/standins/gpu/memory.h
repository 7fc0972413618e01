// Memory that the library has allocated, and what it knows of a range of addresses.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>

namespace standin {

class Memory {
 public:
  enum Kind { kDevice, kHost, kTest };

  // Null if there is not that much. `device` is -1 where the memory belongs to none.
  void* allocate(Kind kind, size_t bytes, int device, bool is_mapped = true);
  // "", or why that cannot be freed.
  std::string free(Kind kind, void* memory);

  // "", or why an operation of this device must not touch the range.
  std::string fault(const void* begin, size_t bytes, int device) const;
  // Whether it lies in memory of cuMemHostAlloc; `is_mapped`: in such that was to be mapped.
  bool is_host(const void* pointer, bool is_mapped) const;
  // Allocated and not freed; -1: of all devices.
  size_t bytes(Kind kind, int device) const;
  // Notes a misuse where freed memory was written.
  void look_after();

 private:
  struct Block {
    Kind kind;
    size_t bytes;
    int device;
    bool is_mapped, is_live;
  };
  using Blocks = std::map<uintptr_t, Block>;

  Blocks::const_iterator find(const void* pointer) const;
  void let_go(uintptr_t begin);

  mutable std::mutex mutex_;
  Blocks blocks_;                // freed ones included, while they are held back
  std::deque<uintptr_t> freed_;  // the oldest first
  size_t freed_bytes_ = 0;
};

Memory& memory();

}  // namespace standin
