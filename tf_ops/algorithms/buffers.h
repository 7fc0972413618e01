// Memory for what is on its way through the link, kept by the process set from one collective to
// the next. Transfers never read or write a user's memory: after an error nobody can take them
// back, and the user's memory may be gone.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace ringar {

class Buffers {
 public:
  // Number `index`, of at least `bytes`; what it held is lost where it has to grow.
  std::byte* at(size_t index, size_t bytes) {
    if (index >= buffers_.size()) buffers_.resize(index + 1);
    Buffer& buffer = buffers_[index];
    if (buffer.bytes < bytes) buffer = {std::make_unique<std::byte[]>(bytes), bytes};
    return buffer.memory.get();
  }

  void leak() { new std::vector<Buffer>(std::move(buffers_)); }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace ringar
