// The arrays that ranks of a host have in the pool of outputs, announced by the first step of a
// large allreduce.
//
// An offer is where an array lies in its rank's part of the pool. Offers are written to the slice
// of a rank's send buffer that is its own, which holds nothing else. Ranks may offer different
// arrays: the others travel through the buffers.
//
// The other collectives offer inputs only, since no other rank writes to their outputs.

#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/buffer_list.h"
#include "engine/intra_node_communicator.h"
#include "engine/request.h"

namespace ringar {

// The offers of the first `count` inputs of a request, by IntraNodeCommunicator::offer_of, or 0
// where all of them are few bytes. A rank that reads an input where it lies saves a copy, but ranks
// have to meet once more at the end.
void offer_inputs(const IntraNodeCommunicator& host, const Request& request, uint64_t* offers,
                  size_t count);

class Offers {
 public:
  // Before the first exchange: offers this rank's arrays. `array` is all of its request, `slice`
  // the bytes of a slice of its first block.
  Offers(IntraNodeCommunicator& host, const Request& request, const BufferList& array,
         size_t slice);

  // After it: reads the others' offers.
  void read();

  // Whether all arrays of all ranks lie in the pool: the same on all ranks.
  bool are_complete() const { return complete_; }

  // This rank's array, with null where the others read an input or write an output in the pool.
  const BufferList& unpooled() const { return *unpooled_; }

  // Where another rank has a byte of the array, or null.
  BufferList::Place at(int rank, size_t position) const {
    const BufferList& array = host_.workspace().array_of(rank);
    return array.size() == 0 ? BufferList::Place{} : array.at(position);
  }

 private:
  struct Offer {
    uint64_t input, output;  // offsets plus one; 0: not in the pool
  };
  struct Table {
    uint64_t count;  // the arrays after these are not in the pool
    Offer offers[1];
  };

  Table& table(int rank) const {
    return *reinterpret_cast<Table*>(host_.send_buffer(rank) + slice_ * static_cast<size_t>(rank));
  }
  void write();
  // Calls visit(tensor, bytes, its offer) for each tensor of the request.
  template <typename Visit>
  void for_each(const Table& table, Visit visit) const;

  IntraNodeCommunicator& host_;
  const Request& request_;
  const BufferList* unpooled_;
  const size_t slice_;
  bool complete_ = true;
};

}  // namespace ringar
