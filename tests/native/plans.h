// Random collectives: what each rank brings and what it must get. A plan is a function of its seed,
// so that every rank makes the same one without a word to the others.

#pragma once

#include <memory>
#include <vector>

#include "ranks.h"
#include "requests.h"

namespace ringar::test {

// How one rank spoils a collective.
enum class Twist {
  kNone,
  kName,
  kDtype,
  kOp,
  kShape,
  kCollective,
  kCount,  // one array more
  kSplits,
  kLast,
};

struct Plan {
  Collective collective;
  DataType dtype;
  ReduceOp op;
  int root;
  int process_set;
  double prescale, postscale;
  std::vector<int> members;  // ranks of the job
  uint64_t seed;
  Output where;
  std::vector<std::vector<int64_t>> tails;   // dims after the first, per array
  std::vector<std::vector<int64_t>> rows;    // per member and array
  std::vector<std::vector<int64_t>> splits;  // per member; none: even
  Twist twist = Twist::kNone;
  size_t offender = 0;  // a place in `members`
  // Small whole numbers: any order of adding them gives the same bits.
  bool whole_numbers = false;
  std::string options;  // of the spec, such as "algorithm=ring "
  int gpus = 0;         // the ranks' arrays are on these, in turn; 0: in the memory of hosts

  size_t ranks() const { return members.size(); }
  size_t arrays() const { return tails.size(); }
  std::string describe() const;

  Bytes input(size_t member, size_t array) const;
  Bytes expected(size_t member, size_t array) const;
  // The request of one member, twisted if it is the offender.
  std::unique_ptr<TestRequest> request(size_t member) const;
};

// 0 … size-1.
std::vector<int> all_ranks(int size);

// `largest`: bytes per array, about.
Plan random_plan(uint64_t seed, const std::vector<int>& members, int process_set, size_t largest);

// The same for ranks on several hosts, whose sums have no order that a test should fix.
Plan random_plan_between_hosts(uint64_t seed, const std::vector<int>& members, int process_set,
                               size_t largest);

// The same for arrays on GPUs; all ranks share one if there is one.
Plan random_plan_on_gpus(uint64_t seed, const std::vector<int>& members, int process_set,
                         size_t largest, int gpus = 1);

// Runs the plan on this rank, through submit() or run(), and compares. Fails the test with the
// plan's description.
void run_plan(const Plan& plan, int rank, Engine& engine);

}  // namespace ringar::test
