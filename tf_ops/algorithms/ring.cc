#include "algorithms/ring.h"

#include <algorithm>

namespace ringar {
namespace {

// Part i of n equal ones, in whole cache lines.
Chunks::Chunk part(const Chunks::Chunk& whole, int i, int n) {
  const size_t parts = static_cast<size_t>(n);
  const size_t share = ((whole.size() + parts - 1) / parts + 63) / 64 * 64;
  const auto edge = [&](int k) {
    return std::min(whole.end, whole.begin + share * static_cast<size_t>(k));
  };
  return {whole.array, edge(i), edge(i + 1)};
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

Ring::Ring(InterNodeCommunicator& group, Kind kind, const Chunks& chunks, const WireCodec& codec,
           StagingBuffers& buffers, int lanes)
    : group_(group),
      chunks_(chunks),
      codec_(codec),
      hops_(group.size() - 1),
      first_step_(kind == kAllGather ? hops_ : 0),
      last_step_(kind == kReduceScatter ? hops_ - 1 : 2 * hops_ - 1) {
  const size_t count = std::min(static_cast<size_t>(lanes), chunks.count());
  const size_t bytes = codec.wire_bytes(chunks.largest());
  for (size_t i = 0; i < count; ++i)
    lanes_.push_back({i, -1, buffers.at(2 * i, bytes), buffers.at(2 * i + 1, bytes)});
}

int Ring::outgoing(int step) const {
  return step < hops_ ? segment(step + 1) : segment(step - hops_);
}

int Ring::incoming(int step) const {
  return outgoing(step + 1);
}

Status Ring::start(Lane& lane, int channel) {
  lane.step = first_step_;
  const Chunks::Chunk mine = chunks_.chunk(outgoing(first_step_), lane.chunk);
  group_.timed(Span::kCopy, [&] {
    if (first_step_ == 0)
      codec_.begin(*mine.array, mine.begin, mine.end, lane.holding);
    else
      mine.array->gather(mine.begin, mine.end, lane.holding);
  });
  return post(lane, channel);
}

// Both ends know where a chunk is empty: then there is no message.
Status Ring::post(Lane& lane, int channel) {
  const size_t in = codec_.wire_bytes(chunks_.chunk(incoming(lane.step), lane.chunk).size());
  const size_t out = codec_.wire_bytes(chunks_.chunk(outgoing(lane.step), lane.chunk).size());
  if (in)
    RINGAR_RETURN_IF_ERROR(
        group_.receive(group_.neighbor(-1), channel, lane.incoming, in, &lane.receiving));
  if (out)
    RINGAR_RETURN_IF_ERROR(
        group_.send(group_.neighbor(1), channel, lane.holding, out, &lane.sending));
  return {};
}

void Ring::take_in(Lane& lane) {
  const Chunks::Chunk chunk = chunks_.chunk(incoming(lane.step), lane.chunk);
  if (lane.step >= hops_)
    group_.timed(Span::kCopy,
                 [&] { codec_.deliver(*chunk.array, chunk.begin, chunk.end, lane.incoming); });
  else
    group_.timed(Span::kReduce, [&] {
      if (lane.step == hops_ - 1)
        codec_.add_last(*chunk.array, chunk.begin, chunk.end, lane.incoming);
      else
        codec_.add(*chunk.array, chunk.begin, chunk.end, lane.incoming);
    });
  std::swap(lane.holding, lane.incoming);
}

Status Ring::advance(bool* moved) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const int channel = static_cast<int>(i);
    if (lane.step < 0) {
      if (lane.chunk >= released_ || lane.chunk >= chunks_.count()) continue;
      RINGAR_RETURN_IF_ERROR(start(lane, channel));
      *moved = true;
    }
    RINGAR_RETURN_IF_ERROR(group_.poll(&lane.receiving, moved));
    RINGAR_RETURN_IF_ERROR(group_.poll(&lane.sending, moved));
    if (lane.receiving >= 0 || lane.sending >= 0) continue;
    *moved = true;
    take_in(lane);
    if (lane.step++ < last_step_) {
      RINGAR_RETURN_IF_ERROR(post(lane, channel));
    } else {
      lane.step = -1;
      lane.chunk += lanes_.size();
    }
  }
  return {};
}

Status Ring::keep_going() {
  bool moved = false;
  RINGAR_RETURN_IF_ERROR(group_.progress());
  return advance(&moved);
}

bool Ring::has_finished(size_t count) const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [&](const Lane& lane) { return lane.chunk >= count; });
}

Status Ring::run(WaitPolicy policy) {
  release(chunks_.count());
  return group_.until_done(policy, [&](bool* moved, bool* done) -> Status {
    RINGAR_RETURN_IF_ERROR(advance(moved));
    *done = has_finished(chunks_.count());
    return {};
  });
}

}  // namespace ringar
