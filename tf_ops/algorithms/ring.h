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
// Segments are cut into pieces, and piece k of all segments goes around in lane k mod `lanes`. A
// lane is a small ring of its own, with two buffers: one holds what it sends, the other takes what
// it receives, and at the end of a step they change places. While one lane adds, the others'
// messages travel; a rank is never stopped by its neighbour's arithmetic as long as lanes x piece
// exceeds what the network takes up in the time of a step. A lane posts its receive before its
// send, so it cannot block, whatever the network buffers.
//
// Segment s is added up in the order of ranks s+1, s+2, … s, by one chain of ranks, and everybody
// gets the result from there: all ranks hold the same bits, and the same ones every time.

#pragma once

#include <cstddef>
#include <vector>

#include "algorithms/buffers.h"
#include "algorithms/hop.h"
#include "algorithms/virtual_array.h"
#include "engine/link_group.h"

namespace ringar {

// Where piece k of a rank's segment lies.
class Pieces {
 public:
  struct Piece {
    const VirtualArray* array;
    size_t begin, end;
    size_t size() const { return end - begin; }
  };

  // One array, cut into blocks, a block into one slice per column, the slice of `column` into one
  // piece per rank: the pieces of a full block have `piece_bytes`.
  static Pieces of_blocks(const VirtualArray& array, int ranks, size_t piece_bytes, int column = 0,
                          int columns = 1);
  // An array for each rank.
  static Pieces of_shares(const std::vector<VirtualArray>& shares, size_t piece_bytes);

  size_t count() const { return count_; }  // of each rank
  size_t largest() const { return piece_bytes_; }
  Piece piece(int rank, size_t k) const;

  // Of the pieces of an array that is cut into blocks: block k, and the slice of a column of it.
  Piece block(size_t k) const;
  Piece slice(size_t k, int column) const;

 private:
  const VirtualArray* array_ = nullptr;
  const std::vector<VirtualArray>* shares_ = nullptr;
  int ranks_ = 1, column_ = 0, columns_ = 1;
  size_t piece_bytes_ = 0, count_ = 0;
};

class Ring : public InFlight {
 public:
  enum Kind { kReduceScatter, kAllGather, kAllreduce };

  // Pieces are waited for by start().
  Ring(LinkGroup& group, Kind kind, const Pieces& pieces, const Hop& hop, Buffers& buffers,
       int lanes);

  // Lets pieces before `count` go.
  void release(size_t count) { released_ = count; }
  // Goes on with what the link has found; `moved`: whether anything came or went.
  Status advance(bool* moved);
  Status keep_going() override;
  // Whether pieces before `count` have come to their end.
  bool has_finished(size_t count) const;
  // Lets all pieces go, and waits for their end.
  Status run(LinkGroup::Haste haste);

 private:
  struct Lane {
    size_t piece;   // the one under way, or the next one
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

  LinkGroup& group_;
  const Pieces& pieces_;
  const Hop& hop_;
  const int hops_;  // of one round: size - 1
  const int first_step_, last_step_;
  size_t released_ = 0;
  std::vector<Lane> lanes_;
};

}  // namespace ringar
