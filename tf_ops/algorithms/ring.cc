#include "algorithms/ring.h"

#include <algorithm>

namespace ringar {

Ring::Ring(InterNodeCommunicator& group, Kind kind, const Chunks& chunks, const WireCodec& codec,
           StagingBuffers& buffers, int lanes)
    : InLanes(group, chunks.count()),
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
  group().timed(Span::kCopy, [&] {
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
        group().receive(group().neighbor(-1), channel, lane.incoming, in, &lane.receiving));
  if (out)
    RINGAR_RETURN_IF_ERROR(
        group().send(group().neighbor(1), channel, lane.holding, out, &lane.sending));
  return {};
}

void Ring::take_in(Lane& lane) {
  const Chunks::Chunk chunk = chunks_.chunk(incoming(lane.step), lane.chunk);
  if (lane.step >= hops_)
    group().timed(Span::kCopy,
                  [&] { codec_.deliver(*chunk.array, chunk.begin, chunk.end, lane.incoming); });
  else
    group().timed(Span::kReduce, [&] {
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
      if (lane.chunk >= released() || lane.chunk >= chunks_.count()) continue;
      RINGAR_RETURN_IF_ERROR(start(lane, channel));
      *moved = true;
    }
    RINGAR_RETURN_IF_ERROR(group().poll(&lane.receiving, moved));
    RINGAR_RETURN_IF_ERROR(group().poll(&lane.sending, moved));
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

bool Ring::has_finished(size_t count) const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [&](const Lane& lane) { return lane.chunk >= count; });
}

}  // namespace ringar
