// How an array is cut for an exchange between hosts.

#pragma once

#include <cstddef>
#include <vector>

#include "engine/buffer_list.h"

namespace ringar {

// Where chunk k of a rank's segment lies.
class Chunks {
 public:
  struct Chunk {
    const BufferList* array;
    size_t begin, end;
    size_t size() const { return end - begin; }
  };

  // One array, cut into blocks, a block into one slice per rail, the slice of `rail` into one chunk
  // per rank: the chunks of a full block have `chunk_bytes`.
  static Chunks of_blocks(const BufferList& array, int ranks, size_t chunk_bytes, int rail = 0,
                          int rails = 1);
  // An array for each rank.
  static Chunks of_shares(const std::vector<BufferList>& shares, size_t chunk_bytes);

  size_t count() const { return count_; }  // of each rank
  size_t largest() const { return chunk_bytes_; }
  Chunk chunk(int rank, size_t k) const;

  // Of the chunks of an array that is cut into blocks: block k, and the slice of a rail of it.
  Chunk block(size_t k) const;
  Chunk slice(size_t k, int rail) const;

 private:
  const BufferList* array_ = nullptr;
  const std::vector<BufferList>* shares_ = nullptr;
  int ranks_ = 1, rail_ = 0, rails_ = 1;
  size_t chunk_bytes_ = 0, count_ = 0;
};

}  // namespace ringar
