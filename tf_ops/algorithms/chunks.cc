#include "algorithms/chunks.h"

#include <algorithm>

namespace ringar {
namespace {

// Part i of n equal ones, in whole cache lines.
Chunks::Chunk part(const Chunks::Chunk& chunk, int i, int n) {
  const size_t parts = static_cast<size_t>(n);
  const size_t share = ((chunk.size() + parts - 1) / parts + 63) / 64 * 64;
  const auto edge = [&](int k) {
    return std::min(chunk.end, chunk.begin + share * static_cast<size_t>(k));
  };
  return {chunk.array, edge(i), edge(i + 1)};
}

}  // namespace

Chunks Chunks::of_blocks(const BufferList& array, int ranks, size_t chunk_bytes, int rail,
                         int rails) {
  Chunks chunks;
  chunks.array_ = &array;
  chunks.ranks_ = ranks;
  chunks.rail_ = rail;
  chunks.rails_ = rails;
  chunks.chunk_bytes_ = chunk_bytes;
  const size_t block = chunk_bytes * static_cast<size_t>(ranks * rails);
  chunks.count_ = (array.size() + block - 1) / block;
  return chunks;
}

Chunks Chunks::of_shares(const std::vector<BufferList>& shares, size_t chunk_bytes) {
  Chunks chunks;
  chunks.shares_ = &shares;
  chunks.chunk_bytes_ = chunk_bytes;
  size_t longest = 0;
  for (const BufferList& share : shares) longest = std::max(longest, share.size());
  chunks.count_ = (longest + chunk_bytes - 1) / chunk_bytes;
  return chunks;
}

Chunks::Chunk Chunks::block(size_t k) const {
  const size_t bytes = chunk_bytes_ * static_cast<size_t>(ranks_ * rails_);
  return {array_, std::min(array_->size(), k * bytes), std::min(array_->size(), (k + 1) * bytes)};
}

Chunks::Chunk Chunks::slice(size_t k, int rail) const {
  return part(block(k), rail, rails_);
}

Chunks::Chunk Chunks::chunk(int rank, size_t k) const {
  if (!shares_) return part(slice(k, rail_), rank, ranks_);
  const BufferList& share = (*shares_)[static_cast<size_t>(rank)];
  return {&share, std::min(share.size(), k * chunk_bytes_),
          std::min(share.size(), (k + 1) * chunk_bytes_)};
}

}  // namespace ringar
