#include "algorithms/halving_doubling.h"

#include <algorithm>

namespace ringar {

HalvingDoubling::HalvingDoubling(InterNodeCommunicator& group, const Spec& spec,
                                 const Chunks& chunks, const WireCodec& codec,
                                 StagingBuffers& buffers, int lanes)
    : InLanes(group, chunks.count()), spec_(spec), chunks_(chunks), codec_(codec) {
  for (int e = group.size(); e > 1; e = edges_.back().f) edges_.push_back({e, (e + 1) / 2});
  const size_t segment = codec.wire_bytes(chunks.largest());
  const auto most_received = static_cast<size_t>(edges_.front().moved());
  open(lanes, 2 * static_cast<int>(edges_.size()) - 1, buffers,
       segment * static_cast<size_t>(group.size()), segment * most_received);
}

HalvingDoubling::Edges HalvingDoubling::edges(int round) const {
  const auto halvings = static_cast<int>(edges_.size());
  return edges_[static_cast<size_t>(halves(round) ? round : 2 * halvings - 1 - round)];
}

Chunks::Chunk HalvingDoubling::segment_of(size_t block, int place) const {
  return chunks_.chunk(group().neighbor(place), block);
}

size_t HalvingDoubling::wire_bytes(size_t block, int segments) const {
  if (segments == 0) return 0;
  const size_t begin = segment_of(block, 0).begin, end = segment_of(block, segments - 1).end;
  if (group().rank() + segments <= group().size()) return codec_.wire_bytes(end - begin);
  const size_t last = chunks_.chunk(group().size() - 1, block).end;
  return codec_.wire_bytes(last - begin + end - chunks_.chunk(0, block).begin);
}

Status HalvingDoubling::start(Lane& lane, int channel) {
  lane.round = 0;
  const Chunks::Chunk segment = segment_of(lane.chunk, 0);
  const size_t first = chunks_.chunk(0, lane.chunk).begin;
  const size_t last = chunks_.chunk(group().size() - 1, lane.chunk).end;
  group().timed(Span::kCopy, [&] {
    codec_.begin(*segment.array, segment.begin, last, lane.sums);
    codec_.begin(*segment.array, first, segment.begin,
                 lane.sums + codec_.wire_bytes(last - segment.begin));
  });
  return post(lane, channel);
}

// Empty messages are not sent: both ends know which ones are empty.
Status HalvingDoubling::post(Lane& lane, int channel) {
  const Edges now = edges(lane.round);
  const size_t kept_bytes = wire_bytes(lane.chunk, now.f), all = wire_bytes(lane.chunk, now.e);
  const size_t moved = wire_bytes(lane.chunk, now.moved());
  const bool halving = halves(lane.round);
  const int ahead = group().neighbor(now.f), behind = group().neighbor(-now.f);
  std::byte* const rest = lane.sums + kept_bytes;
  if (const size_t in = halving ? moved : all - kept_bytes)
    RINGAR_RETURN_IF_ERROR(group().receive(halving ? behind : ahead, channel,
                                           halving ? lane.incoming : rest, in, &lane.receiving));
  if (const size_t out = halving ? all - kept_bytes : moved)
    RINGAR_RETURN_IF_ERROR(group().send(halving ? ahead : behind, channel,
                                        halving ? rest : lane.sums, out, &lane.sending));
  return {};
}

void HalvingDoubling::take_in(Lane& lane) {
  const Edges now = edges(lane.round);
  if (!halves(lane.round))
    return group().timed(Span::kCopy, [&] { deliver(lane, now.f, now.moved()); });
  group().timed(Span::kReduce, [&] {
    add(lane, now.moved());
    if (now.f > 1) return;
    const Chunks::Chunk segment = segment_of(lane.chunk, 0);
    codec_.end(*segment.array, segment.begin, segment.end, lane.sums);
  });
}

void HalvingDoubling::add(const Lane& lane, int segments) {
  const DataType dtype = codec_.wire_dtype();
  const std::byte* const sources[] = {lane.sums, lane.incoming};
  reduce({dtype, spec_.op}, sources, 2, lane.sums,
         wire_bytes(lane.chunk, segments) / size_of(dtype));
}

// Segments `first` … of those that this rank holds, to the outputs.
void HalvingDoubling::deliver(const Lane& lane, int first, int segments) const {
  for (int place = first; place < first + segments; ++place) {
    const Chunks::Chunk chunk = segment_of(lane.chunk, place);
    codec_.deliver(*chunk.array, chunk.begin, chunk.end, lane.sums + wire_bytes(lane.chunk, place));
  }
}

}  // namespace ringar
