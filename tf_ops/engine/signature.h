// A rank's description of its collective, in a form that the others can compare.
//
// A signature travels with the first step of every collective. Ranks run the same program, so equal
// position in the queue means the same collective; if a rank took another path, its signature
// differs, every rank sees that at the same step, and all of them raise the same error.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request.h"

namespace ringar {

struct Signature {
  static constexpr size_t kNameBytes = 104;
  static constexpr size_t kRejectionBytes = 320;

  uint64_t sequence = 0;  // how many collectives of this process set came before
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  uint8_t rejected = 0;
  DataType wire = DataType::kCount;
  Algorithm algorithm = Algorithm::kAuto;
  uint8_t fixed_rows = 0;  // an all-gather or all-to-all of compiled code
  uint8_t on_gpu = 0;
  int32_t root = 0;
  int32_t tag = 0;
  int32_t tensors = 0;
  int32_t ndims = 0;  // of the first tensor, whose dims follow; the hash covers all
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t dims[Shape::kMaxDims] = {};  // -1 where ranks may differ
  uint64_t shapes_hash = 0;
  uint64_t name_hash = 0;
  char name[kNameBytes] = {};
  char rejection[kRejectionBytes] = {};  // only meaningful if `rejected`

  // `rejection`: why this rank cannot take part, or "".
  static Signature of(const Request& request, const std::string& rejection, uint64_t sequence);

  // Copies the signature, without the rejection's bytes where there is none.
  void copy_to(Signature& other) const;

  // A hash of the fields that must agree; 0 for a rejected one.
  uint64_t digest() const;
  std::string title() const;     // allreduce "loss"
  std::string describe() const;  // allreduce "loss" of float32[32,10], op=sum
};

// Ranks as messages name them: "rank 3", "ranks 0-5, 7".
std::string ranks_in_short(std::vector<int> ranks);

// The error of all ranks when their signatures differ: a line for the majority, if there is one,
// and for each group of ranks that has asked for something else. `global` names the ranks.
Status disagreement(const std::vector<Signature>& signatures, const std::vector<int>& global,
                    int process_set);

}  // namespace ringar
