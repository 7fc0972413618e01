// Memory of the algorithms, kept by the process set from one collective to the next: after the
// largest collective, a training step allocates nothing here.

#pragma once

#include <vector>

#include "engine/buffer_list.h"
#include "engine/request.h"

namespace ringar {

class Workspace {
 public:
  explicit Workspace(size_t ranks)
      : sources(ranks), starts(ranks + 1), sizes(ranks), per_rank_(ranks), in_pool_(ranks) {}

  // Empty arrays, to be filled.
  BufferList& array() {
    array_.clear();
    return array_;
  }
  // All arrays of a request as one.
  BufferList& list_of(const Request& request) {
    BufferList& list = array();
    for (const Tensor& t : request.tensors)
      list.append(t.input, t.output,
                  static_cast<size_t>(t.shape.elements()) * request.element_size());
    return list;
  }
  BufferList& sums() {
    sums_.clear();
    return sums_;
  }
  // One of them, as it was filled.
  BufferList& array_of(int rank) { return per_rank_[static_cast<size_t>(rank)]; }
  std::vector<BufferList>& array_per_rank() { return emptied(per_rank_); }
  // The arrays of each rank in the pool of outputs.
  std::vector<BufferList>& in_pool_per_rank() { return emptied(in_pool_); }

  std::vector<const std::byte*> sources;  // one per rank
  std::vector<size_t> starts;             // where each rank's part begins, and the end; [0] is 0
  std::vector<size_t> sizes;              // bytes of each rank's part

 private:
  static std::vector<BufferList>& emptied(std::vector<BufferList>& arrays) {
    for (BufferList& array : arrays) array.clear();
    return arrays;
  }

  BufferList array_, sums_;
  std::vector<BufferList> per_rank_, in_pool_;
};

}  // namespace ringar
