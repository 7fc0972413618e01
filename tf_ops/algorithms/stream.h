// Many bytes from one rank to another, chunk by chunk: each chunk goes through a buffer, several
// are under way, and they are read where and when they arrive.

#pragma once

#include <cstddef>
#include <vector>

#include "engine/buffer_list.h"
#include "engine/inter_node_communicator.h"
#include "engine/staging_buffers.h"
#include "engine/tuning.h"

namespace ringar {

// One end of a stream. It uses as many buffers as there are lanes, from `first_buffer` on; a rank
// that has two at once keeps them InterNodeCommunicator::kChannels apart, of which there are more
// than lanes.
class Stream {
 public:
  Stream(InterNodeCommunicator& group, int peer, const BufferList& array, StagingBuffers& buffers,
         size_t first_buffer)
      : group_(group),
        peer_(peer),
        array_(array),
        buffers_(buffers),
        first_buffer_(first_buffer),
        handles_(static_cast<size_t>(tuning_.lanes), -1) {}

  bool is_done() const { return chunks_done_ == count(); }
  // Chunks that have been sent, or received and put into their place.
  size_t chunks_done() const { return chunks_done_; }

  // Sends what lies ready: chunks before `ready`, from the array's inputs.
  Status advance_sending(size_t ready, bool* moved) {
    while (chunks_begun_ < std::min(ready, count()) &&
           chunks_begun_ - chunks_done_ < handles_.size()) {
      array_.gather(begin(chunks_begun_), begin(chunks_begun_ + 1), buffer(chunks_begun_));
      RINGAR_RETURN_IF_ERROR(group_.send(peer_, kChannel, buffer(chunks_begun_),
                                         bytes(chunks_begun_), &handle(chunks_begun_)));
      ++chunks_begun_;
      *moved = true;
    }
    while (chunks_done_ < chunks_begun_) {
      RINGAR_RETURN_IF_ERROR(group_.poll(&handle(chunks_done_), moved));
      if (handle(chunks_done_) >= 0) break;
      ++chunks_done_;
    }
    return {};
  }

  // Receives into the array's outputs.
  Status advance_receiving(bool* moved) {
    for (;;) {
      while (chunks_begun_ < count() && chunks_begun_ - chunks_done_ < handles_.size()) {
        RINGAR_RETURN_IF_ERROR(group_.receive(peer_, kChannel, buffer(chunks_begun_),
                                              bytes(chunks_begun_), &handle(chunks_begun_)));
        ++chunks_begun_;
      }
      if (chunks_done_ == chunks_begun_) return {};
      RINGAR_RETURN_IF_ERROR(group_.poll(&handle(chunks_done_), moved));
      if (handle(chunks_done_) >= 0) return {};
      array_.scatter(begin(chunks_done_), begin(chunks_done_ + 1), buffer(chunks_done_));
      ++chunks_done_;
    }
  }

 private:
  static constexpr int kChannel = InterNodeCommunicator::kChannels - 2;

  size_t count() const { return (array_.size() + tuning_.chunk_bytes - 1) / tuning_.chunk_bytes; }
  size_t begin(size_t chunk) const { return std::min(array_.size(), chunk * tuning_.chunk_bytes); }
  size_t bytes(size_t chunk) const { return begin(chunk + 1) - begin(chunk); }
  int& handle(size_t chunk) { return handles_[chunk % handles_.size()]; }
  std::byte* buffer(size_t chunk) {
    return buffers_.at(first_buffer_ + chunk % handles_.size(), tuning_.chunk_bytes);
  }

  InterNodeCommunicator& group_;
  const int peer_;
  const BufferList& array_;
  StagingBuffers& buffers_;
  const size_t first_buffer_;
  const LinkTuning tuning_ = link_tuning(SIZE_MAX, 1);
  std::vector<int> handles_;
  size_t chunks_begun_ = 0, chunks_done_ = 0;
};

}  // namespace ringar
