// What algorithms write down while they run, kept by the process set from one collective to the
// next: once the largest has been seen, a step of training allocates nothing here.

#pragma once

#include <vector>

#include "algorithms/virtual_array.h"
#include "engine/request.h"

namespace ringar {

class Workspace {
 public:
  explicit Workspace(size_t ranks) : sources(ranks), starts(ranks + 1), per_rank_(ranks) {}

  // Empty arrays, to be filled.
  VirtualArray& array() {
    array_.clear();
    return array_;
  }
  // All arrays of a request as one.
  VirtualArray& whole(const Request& request) {
    VirtualArray& whole = array();
    for (const Tensor& t : request.tensors)
      whole.append(t.input, t.output,
                   static_cast<size_t>(t.shape.elements()) * request.element_size());
    return whole;
  }
  VirtualArray& sums() {
    sums_.clear();
    return sums_;
  }
  // One of them, with what it was filled with.
  VirtualArray& array_of(int rank) { return per_rank_[static_cast<size_t>(rank)]; }
  std::vector<VirtualArray>& array_per_rank() {
    for (VirtualArray& array : per_rank_) array.clear();
    return per_rank_;
  }

  std::vector<const std::byte*> sources;  // one per rank
  std::vector<size_t> starts;             // where each rank's part begins, and the end; [0] is 0

 private:
  VirtualArray array_, sums_;
  std::vector<VirtualArray> per_rank_;
};

}  // namespace ringar
