// Recursive halving and doubling: an allreduce in 2 ceil(log2 n) messages one after the other that
// sends as few bytes as a ring, for any number n of ranks.
//
// An array is cut into one segment per rank. Reduce-scatter halves the number of segments that a
// rank still adds up, from n to 1, and all-gather doubles the number of those that it has, back to
// n. With the edges e = n, ceil(n/2), ceil(n/4), ..., 1 a rank r keeps segments r, r+1, ..., r+e-1
// (modulo n). In a round of reduce-scatter from e to f it sends segments r+f ... r+e-1 to rank r+f,
// which keeps them, and adds what rank r-f has sent of segments r ... r+e-f-1. All-gather takes the
// rounds in reverse: rank r sends segments r ... r+e-f-1 to rank r-f, whose segments these then
// follow, and receives segments r+f ... r+e-1 from rank r+f.
//
//   n = 5          round 0    round 1    round 2     then    round 3    round 4    round 5
//   e -> f         5 -> 3     3 -> 2     2 -> 1              1 -> 2     2 -> 3     3 -> 5
//   rank 0 sends   3, 4 to 3  2 to 2     1 to 1              0 to 4     0 to 3     0, 1 to 2
//
// Each rank sends (n-1)/n K bytes in each half, 2 (n-1)/n K for an allreduce of K bytes: what a
// ring sends, in 2 ceil(log2 n) instead of 2 (n-1) messages one after the other. So it wins over
// the ring where latency counts, and over recursive doubling, which sends log2(n) K, where bytes
// count, too: for middle sizes, and for long arrays where n is large (Rabenseifner 2004). There
// pairs of ranks exchange halves, and where n is no power of two some hand over to others before,
// and are told at the end, which doubles the bytes. Rounds to the rank f places away need none of
// that, and are the same where n is a power of two but for the partners (Träff, "Optimal,
// non-pipelined reduce-scatter and allreduce algorithms", 2024).
//
// Partners of late rounds are near, those of the first one n/2 places away: where a network has
// less bandwidth between distant hosts than between neighbors, the ring is the better one for long
// arrays.
//
// An array is taken in blocks, several under way at a time, each in a lane: while one lane adds,
// the messages of the others travel. A rank holds a block as it travels, its own segment first, so
// that each message is one piece of it.
//
// Segment s is added up by a tree of ranks: after the round from e to f, rank r has added what rank
// r-f had to what it had itself, of segments r ... r+e-f-1. Rank s has the sum, and everybody gets
// it from there: all ranks hold the same bits, and the same ones every time. On a narrow wire
// (wire_codec.h) each rank rounds its part once, each round adds in float32 and rounds once, and
// rank s rounds the scaled sum.

#pragma once

#include <cstddef>
#include <vector>

#include "algorithms/chunks.h"
#include "algorithms/in_lanes.h"
#include "algorithms/wire_codec.h"
#include "engine/spec.h"
#include "engine/staging_buffers.h"

namespace ringar {

class HalvingDoubling : public InLanes {
 public:
  // `chunks` are those of an array that is cut into blocks.
  HalvingDoubling(InterNodeCommunicator& group, const Spec& spec, const Chunks& chunks,
                  const WireCodec& codec, StagingBuffers& buffers, int lanes);

 private:
  // A round from `e` to `f` segments.
  struct Edges {
    int e, f;
    int moved() const { return e - f; }
  };

  Status start(Lane& lane, int channel) override;
  Status post(Lane& lane, int channel) override;
  void take_in(Lane& lane) override;
  void add(const Lane& lane, int segments);
  void deliver(const Lane& lane, int first, int segments) const;
  bool halves(int round) const { return round < static_cast<int>(edges_.size()); }
  Edges edges(int round) const;
  // Bytes on the wire of the first so many segments that a rank holds of a block.
  size_t wire_bytes(size_t block, int segments) const;
  // Segment number `place` of those that this rank holds of a block, its own one first.
  Chunks::Chunk segment_of(size_t block, int place) const;

  const Spec& spec_;
  const Chunks& chunks_;
  const WireCodec& codec_;
  std::vector<Edges> edges_;  // of the rounds of reduce-scatter
};

}  // namespace ringar
