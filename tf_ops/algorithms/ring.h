// The ring: reduce-scatter, all-gather and, one after the other, allreduce, for any number of ranks
// and bytes.
//
// Every rank sends to its right neighbour only, and receives from its left one. An array is cut
// into one segment per rank. In reduce-scatter, in step t = 0 … n-2, rank r sends what it has of
// segment r-t-1, its own part in step 0, and adds its part to what it receives of segment r-t-2;
// after n-1 steps segment r is complete on rank r. In all-gather, in step u = 0 … n-2, it sends
// segment r-u and receives segment r-u-1.
//
//   n = 3      step 0 sends   step 1     result    then    step 0     step 1
//   rank 0     segment 2      1          0                 0          2
//   rank 1     segment 0      2          1                 1          0
//   rank 2     segment 1      0          2                 2          1
//
// Each rank sends (n-1)/n K bytes in each of the two, 2 (n-1)/n K for an allreduce of K bytes, and
// no algorithm sends less (Patarasuk and Yuan 2009). It takes 2 (n-1) messages one after the other,
// which makes it slow where K is small (recursive_doubling.cc) or n is large.
//
// Segments are cut into chunks, and chunk k of all segments goes around in lane k mod `lanes`. A
// lane is a small ring of its own, with two buffers: one holds what it sends, the other takes what
// it receives, and at the end of a step they change places. While one lane adds, the others'
// messages travel; a rank is never stopped by its neighbour's arithmetic as long as lanes x chunk
// exceeds what the network takes up in the time of a step. A lane posts its receive before its
// send, so it cannot block, whatever the network buffers.
//
// Segment s is added up in the order of ranks s+1, s+2, … s, by one chain of ranks, and everybody
// gets the result from there: all ranks hold the same bits, and the same ones every time.

#pragma once

#include <cstddef>
#include <vector>

#include "algorithms/chunks.h"
#include "algorithms/in_lanes.h"
#include "algorithms/wire_codec.h"
#include "engine/staging_buffers.h"

namespace ringar {

class Ring : public InLanes {
 public:
  enum Kind { kReduceScatter, kAllGather, kAllreduce };

  Ring(InterNodeCommunicator& group, Kind kind, const Chunks& chunks, const WireCodec& codec,
       StagingBuffers& buffers, int lanes);

 private:
  Status start(Lane& lane, int channel) override;
  Status post(Lane& lane, int channel) override;
  void take_in(Lane& lane) override;
  int segment(int distance) const { return group().neighbor(-distance % group().size()); }
  int outgoing(int step) const;
  int incoming(int step) const;

  const Chunks& chunks_;
  const WireCodec& codec_;
  const int hops_;  // of one round: size - 1
  const int first_step_;
};

}  // namespace ringar
