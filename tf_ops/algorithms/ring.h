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
// which is what it loses by where K is small (recursive_doubling.cc) or n is large.
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

#include "algorithms/buffer_list.h"
#include "algorithms/staging_buffers.h"
#include "algorithms/wire_codec.h"
#include "engine/inter_node_communicator.h"

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

class Ring : public InFlight {
 public:
  enum Kind { kReduceScatter, kAllGather, kAllreduce };

  // Chunks are waited for by start().
  Ring(InterNodeCommunicator& group, Kind kind, const Chunks& chunks, const WireCodec& codec,
       StagingBuffers& buffers, int lanes);

  // Lets chunks before `count` go.
  void release(size_t count) { released_ = count; }
  // Goes on with what the link has found; `moved`: whether anything came or went.
  Status advance(bool* moved);
  Status keep_going() override;
  // Whether chunks before `count` have come to their end.
  bool has_finished(size_t count) const;
  // Lets all chunks go, and waits for their end.
  Status run(WaitPolicy policy);

 private:
  struct Lane {
    size_t chunk;   // the one under way, or the next one
    int step = -1;  // -1 if none is under way
    std::byte *holding, *incoming;
    int sending = -1, receiving = -1;
  };

  Status start(Lane& lane, int channel);
  Status post(Lane& lane, int channel);
  void take_in(Lane& lane);
  int segment(int distance) const { return group_.neighbor(-distance % group_.size()); }
  int outgoing(int step) const;
  int incoming(int step) const;

  InterNodeCommunicator& group_;
  const Chunks& chunks_;
  const WireCodec& codec_;
  const int hops_;  // of one round: size - 1
  const int first_step_, last_step_;
  size_t released_ = 0;
  std::vector<Lane> lanes_;
};

}  // namespace ringar
