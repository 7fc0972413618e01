// A collective's arguments apart from the arrays, in one line of text.
//
//   allreduce dtype=float32 op=sum root=0 set=0 prescale=1 postscale=0.5 name=gradients/bucket_0
//
// The same text is the attribute of a TensorFlow op, the opaque string of an XLA custom call and
// the argument of ringar_run, so that three ways in share one reader. `name` comes last and runs to
// the end of the line. A compiled call adds `shapes=2,3;;4` (here a matrix, a scalar and a vector),
// and so does an op that receives a message, with -1 for dimensions that only the message tells;
// an allreduce may have `wire=bfloat16`, the dtype in which float32 travels between hosts,
// `algorithm=ring`, and `shares=17`, the key of a weighted average (engine/shares.h); a message
// `tag=3`, the stream that it belongs to. In a job whose ranks may change, a graph outlives the
// world that it was traced in: `mean=1` divides by the number of ranks that there are when it runs,
// and `world=2` lets it run in that generation only.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "engine/types.h"

namespace ringar {

struct TrafficCount;

struct Spec {
  // Tags of messages: from 0 on those of users, below 0 those of pipelines.
  static constexpr int kUserTags = 1024, kPipelineTags = 4096;

  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;  // a rank of the process set, not of the job; the other one, of a message
  int32_t process_set = 0;
  double prescale = 1.0;
  double factor = 1.0;                     // `postscale` of the text
  mutable double postscale = 1.0;          // with the mean's
  DataType wire = DataType::kCount;        // none: it travels as it is
  Algorithm algorithm = Algorithm::kAuto;  // of an allreduce
  int32_t shares = -1;                     // none
  int32_t tag = 0;
  int32_t mean = 0;    // 1: the result is divided by the number of ranks, too
  int32_t world = -1;  // any
  std::vector<std::vector<int64_t>> shapes;
  std::string name;

  mutable TrafficCount* traffic = nullptr;  // where collectives with this spec are counted

  // Before it runs among so many ranks: one set at a time runs it, whose requests run in turn.
  void fit_to(int ranks) const {
    if (mean != 0) postscale = factor / ranks;
  }

  static Status parse(std::string_view text, Spec* spec);

  static bool is_tag(int tag) { return -kPipelineTags <= tag && tag < kUserTags; }
  // From 0 on, out of kUserTags + kPipelineTags; the first tags of users and of pipelines come
  // first.
  static int place_of(int tag) {
    const int number = tag >= 0 ? tag : -1 - tag;
    if (number >= kUserTags) return number + kUserTags;
    return 2 * number + (tag < 0);
  }
};

// The factor of a sum, the one before it and the one after it: NCCL knows one.
inline double factor_of(const Spec& spec) {
  return spec.prescale * spec.postscale;
}

}  // namespace ringar
