#include "algorithms/halving_doubling.h"

#include <algorithm>

namespace ringar {

HalvingDoubling::HalvingDoubling(InterNodeCommunicator& group, const Spec& spec,
                                 const Chunks& chunks, const WireCodec& codec,
                                 StagingBuffers& buffers, int lanes)
    : InLanes(group, chunks.count()), spec_(spec), chunks_(chunks), codec_(codec) {
  for (int more = group.size(); more > 1; more = edges_.back().fewer)
    edges_.push_back({more, (more + 1) / 2});
  const size_t count = std::min(static_cast<size_t>(lanes), chunks.count());
  const size_t segment = codec.wire_bytes(chunks.largest());
  const auto most_received = static_cast<size_t>(edges_.front().moved());
  for (size_t i = 0; i < count; ++i)
    lanes_.push_back({i, -1, buffers.at(2 * i, segment * static_cast<size_t>(group.size())),
                      buffers.at(2 * i + 1, segment * most_received)});
}

HalvingDoubling::Edges HalvingDoubling::edges(int round) const {
  const auto halvings = static_cast<int>(edges_.size());
  return edges_[static_cast<size_t>(halves(round) ? round : 2 * halvings - 1 - round)];
}

Chunks::Chunk HalvingDoubling::held(size_t block, int place) const {
  return chunks_.chunk(group().neighbor(place), block);
}

size_t HalvingDoubling::wire_bytes(size_t block, int segments) const {
  if (segments == 0) return 0;
  const size_t begin = held(block, 0).begin, end = held(block, segments - 1).end;
  if (group().rank() + segments <= group().size()) return codec_.wire_bytes(end - begin);
  const size_t last = chunks_.chunk(group().size() - 1, block).end;
  return codec_.wire_bytes(last - begin + end - chunks_.chunk(0, block).begin);
}

Status HalvingDoubling::start(Lane& lane, int channel) {
  lane.round = 0;
  const Chunks::Chunk mine = held(lane.block, 0);
  const size_t first = chunks_.chunk(0, lane.block).begin;
  const size_t last = chunks_.chunk(group().size() - 1, lane.block).end;
  group().timed(Span::kCopy, [&] {
    codec_.begin(*mine.array, mine.begin, last, lane.sums);
    codec_.begin(*mine.array, first, mine.begin, lane.sums + codec_.wire_bytes(last - mine.begin));
  });
  return post(lane, channel);
}

// Both ends know where a message is empty: then there is none.
Status HalvingDoubling::post(Lane& lane, int channel) {
  const Edges now = edges(lane.round);
  const size_t kept = wire_bytes(lane.block, now.fewer), all = wire_bytes(lane.block, now.more);
  const size_t moved = wire_bytes(lane.block, now.moved());
  const bool halving = halves(lane.round);
  const int ahead = group().neighbor(now.fewer), behind = group().neighbor(-now.fewer);
  std::byte* const rest = lane.sums + kept;
  if (const size_t in = halving ? moved : all - kept)
    RINGAR_RETURN_IF_ERROR(group().receive(halving ? behind : ahead, channel,
                                           halving ? lane.incoming : rest, in, &lane.receiving));
  if (const size_t out = halving ? all - kept : moved)
    RINGAR_RETURN_IF_ERROR(group().send(halving ? ahead : behind, channel,
                                        halving ? rest : lane.sums, out, &lane.sending));
  return {};
}

void HalvingDoubling::take_in(Lane& lane) {
  const Edges now = edges(lane.round);
  if (!halves(lane.round))
    return group().timed(Span::kCopy, [&] { deliver(lane, now.fewer, now.moved()); });
  group().timed(Span::kReduce, [&] {
    add(lane, now.moved());
    if (now.fewer > 1) return;
    const Chunks::Chunk mine = held(lane.block, 0);
    codec_.end(*mine.array, mine.begin, mine.end, lane.sums);
  });
}

void HalvingDoubling::add(const Lane& lane, int segments) {
  const DataType dtype = codec_.wire_dtype();
  const std::byte* const sources[] = {lane.sums, lane.incoming};
  reduce({dtype, spec_.op}, sources, 2, lane.sums,
         wire_bytes(lane.block, segments) / size_of(dtype));
}

// Segments `first` … of those that this rank holds, to the outputs.
void HalvingDoubling::deliver(const Lane& lane, int first, int segments) const {
  for (int place = first; place < first + segments; ++place) {
    const Chunks::Chunk chunk = held(lane.block, place);
    codec_.deliver(*chunk.array, chunk.begin, chunk.end, lane.sums + wire_bytes(lane.block, place));
  }
}

Status HalvingDoubling::advance(bool* moved) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const int channel = static_cast<int>(i);
    if (lane.round < 0) {
      if (lane.block >= released() || lane.block >= chunks_.count()) continue;
      RINGAR_RETURN_IF_ERROR(start(lane, channel));
      *moved = true;
    }
    RINGAR_RETURN_IF_ERROR(group().poll(&lane.receiving, moved));
    RINGAR_RETURN_IF_ERROR(group().poll(&lane.sending, moved));
    if (lane.receiving >= 0 || lane.sending >= 0) continue;
    *moved = true;
    take_in(lane);
    if (++lane.round < 2 * static_cast<int>(edges_.size())) {
      RINGAR_RETURN_IF_ERROR(post(lane, channel));
    } else {
      lane.round = -1;
      lane.block += lanes_.size();
    }
  }
  return {};
}

bool HalvingDoubling::has_finished(size_t count) const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [&](const Lane& lane) { return lane.block >= count; });
}

}  // namespace ringar
