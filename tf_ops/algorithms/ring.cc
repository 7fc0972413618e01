#include "algorithms/ring.h"

#include <algorithm>

namespace ringar {

Ring::Ring(InterNodeCommunicator& group, Kind kind, const Chunks& chunks, const WireCodec& codec,
           StagingBuffers& buffers, int lanes)
    : InLanes(group, chunks.count()),
      chunks_(chunks),
      codec_(codec),
      hops_(group.size() - 1),
      first_step_(kind == kAllGather ? hops_ : 0) {
  const size_t bytes = codec.wire_bytes(chunks.largest());
  open(lanes, kind == kReduceScatter ? hops_ - 1 : 2 * hops_ - 1, buffers, bytes, bytes);
}

int Ring::outgoing(int step) const {
  return step < hops_ ? segment(step + 1) : segment(step - hops_);
}

int Ring::incoming(int step) const {
  return outgoing(step + 1);
}

Status Ring::start(Lane& lane, int channel) {
  lane.round = first_step_;
  const Chunks::Chunk chunk = chunks_.chunk(outgoing(first_step_), lane.chunk);
  group().timed(Span::kCopy, [&] {
    if (first_step_ == 0)
      codec_.begin(*chunk.array, chunk.begin, chunk.end, lane.sums);
    else
      chunk.array->gather(chunk.begin, chunk.end, lane.sums);
  });
  return post(lane, channel);
}

// Empty chunks are not sent: both ends know which ones are empty.
Status Ring::post(Lane& lane, int channel) {
  const size_t in = codec_.wire_bytes(chunks_.chunk(incoming(lane.round), lane.chunk).size());
  const size_t out = codec_.wire_bytes(chunks_.chunk(outgoing(lane.round), lane.chunk).size());
  if (in)
    RINGAR_RETURN_IF_ERROR(
        group().receive(group().neighbor(-1), channel, lane.incoming, in, &lane.receiving));
  if (out)
    RINGAR_RETURN_IF_ERROR(
        group().send(group().neighbor(1), channel, lane.sums, out, &lane.sending));
  return {};
}

void Ring::take_in(Lane& lane) {
  const Chunks::Chunk chunk = chunks_.chunk(incoming(lane.round), lane.chunk);
  if (lane.round >= hops_)
    group().timed(Span::kCopy,
                  [&] { codec_.deliver(*chunk.array, chunk.begin, chunk.end, lane.incoming); });
  else
    group().timed(Span::kReduce, [&] {
      if (lane.round == hops_ - 1)
        codec_.add_last(*chunk.array, chunk.begin, chunk.end, lane.incoming);
      else
        codec_.add(*chunk.array, chunk.begin, chunk.end, lane.incoming);
    });
  std::swap(lane.sums, lane.incoming);
}

}  // namespace ringar
