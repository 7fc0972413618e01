// Memory for data on their way through the link, kept by the process set from one collective to the
// next. Transfers never read or write a user's memory: after an error nobody can take them back,
// and the user's memory may be gone.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/leak_on_exit.h"

namespace ringar {

class StagingBuffers {
 public:
  // Number `index`, of at least `bytes`; its contents are lost where it has to grow.
  std::byte* at(size_t index, size_t bytes) {
    if (index >= buffers_.size()) buffers_.resize(index + 1);
    Buffer& buffer = buffers_[index];
    if (buffer.bytes < bytes) buffer = {std::make_unique<std::byte[]>(bytes), bytes};
    return buffer.memory.get();
  }

  // For transfers that nobody can take back.
  void leak_on_exit() {
    if (!buffers_.empty()) ringar::leak_on_exit(std::move(buffers_));
  }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace ringar
