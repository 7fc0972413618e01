// Many bytes from one rank to another, piece by piece: each piece goes through a buffer, several
// are under way, and they are read where and when they arrive.

#pragma once

#include <cstddef>
#include <vector>

#include "algorithms/buffers.h"
#include "algorithms/virtual_array.h"
#include "engine/link_group.h"
#include "engine/tuning.h"

namespace ringar {

// One end of a stream. It uses as many buffers as there are lanes, from `first_buffer` on; a rank
// that has two at once keeps them LinkGroup::kChannels apart, of which there are more than lanes.
class Stream {
 public:
  Stream(LinkGroup& group, int peer, const VirtualArray& array, Buffers& buffers,
         size_t first_buffer)
      : group_(group),
        peer_(peer),
        array_(array),
        buffers_(buffers),
        first_buffer_(first_buffer),
        tickets_(static_cast<size_t>(tuning_.lanes), -1) {}

  bool is_done() const { return ended_ == count(); }
  // Pieces that have been sent, or received and put into their place.
  size_t ended() const { return ended_; }

  // Sends what lies ready: pieces before `ready`, from the array's inputs.
  Status advance_sending(size_t ready, bool* moved) {
    while (begun_ < std::min(ready, count()) && begun_ - ended_ < tickets_.size()) {
      array_.gather(begin(begun_), begin(begun_ + 1), buffer(begun_));
      RINGAR_RETURN_IF_ERROR(
          group_.send(peer_, kChannel, buffer(begun_), bytes(begun_), &ticket(begun_)));
      ++begun_;
      *moved = true;
    }
    while (ended_ < begun_) {
      RINGAR_RETURN_IF_ERROR(group_.poll(&ticket(ended_), moved));
      if (ticket(ended_) >= 0) break;
      ++ended_;
    }
    return {};
  }

  // Receives into the array's outputs.
  Status advance_receiving(bool* moved) {
    for (;;) {
      while (begun_ < count() && begun_ - ended_ < tickets_.size()) {
        RINGAR_RETURN_IF_ERROR(
            group_.receive(peer_, kChannel, buffer(begun_), bytes(begun_), &ticket(begun_)));
        ++begun_;
      }
      if (ended_ == begun_) return {};
      RINGAR_RETURN_IF_ERROR(group_.poll(&ticket(ended_), moved));
      if (ticket(ended_) >= 0) return {};
      array_.scatter(begin(ended_), begin(ended_ + 1), buffer(ended_));
      ++ended_;
    }
  }

 private:
  static constexpr int kChannel = LinkGroup::kChannels - 2;

  size_t count() const { return (array_.size() + tuning_.piece_bytes - 1) / tuning_.piece_bytes; }
  size_t begin(size_t piece) const { return std::min(array_.size(), piece * tuning_.piece_bytes); }
  size_t bytes(size_t piece) const { return begin(piece + 1) - begin(piece); }
  int& ticket(size_t piece) { return tickets_[piece % tickets_.size()]; }
  std::byte* buffer(size_t piece) {
    return buffers_.at(first_buffer_ + piece % tickets_.size(), tuning_.piece_bytes);
  }

  LinkGroup& group_;
  const int peer_;
  const VirtualArray& array_;
  Buffers& buffers_;
  const size_t first_buffer_;
  const LinkTuning tuning_ = link_tuning(SIZE_MAX, 1);
  std::vector<int> tickets_;
  size_t begun_ = 0, ended_ = 0;
};

}  // namespace ringar
