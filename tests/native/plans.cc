#include "plans.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "check.h"
#include "engine/signature.h"
#include "reference.h"

namespace ringar::test {
namespace {

using Random = std::mt19937_64;

const Collective kMany[] = {Collective::kAllreduce, Collective::kReducescatter,
                            Collective::kAllgather, Collective::kBroadcast,
                            Collective::kAlltoall,  Collective::kBarrier};

int below(Random& random, int limit) {
  return static_cast<int>(random() % static_cast<uint64_t>(limit));
}

bool rows_differ(Collective c) {
  return c == Collective::kAllgather || c == Collective::kAlltoall;
}

// Sizes of all magnitudes alike: as many below 100 bytes as above 100 KiB.
int64_t random_rows(Random& random, size_t row_bytes, size_t largest) {
  if (below(random, 8) == 0) return 0;
  const double magnitude = std::log2(static_cast<double>(largest)) * below(random, 1001) / 1000;
  return static_cast<int64_t>(std::exp2(magnitude)) / static_cast<int64_t>(row_bytes) + 1;
}

std::vector<int64_t> random_tail(Random& random) {
  switch (below(random, 4)) {
    case 0:
      return {};
    case 1:
      return {below(random, 5)};
    case 2:
      return {1 + below(random, 3), 1 + below(random, 7)};
    default:
      return {1, 2, 1, 1, 2, 1, 1, 3, 1};  // with the rows, ten dimensions
  }
}

std::vector<int64_t> random_splits(Random& random, int64_t rows, size_t ranks) {
  std::vector<int64_t> cuts(ranks + 1, 0);
  cuts[ranks] = rows;
  for (size_t i = 1; i < ranks; ++i)
    cuts[i] = static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<int64_t> splits;
  for (size_t i = 0; i < ranks; ++i) splits.push_back(cuts[i + 1] - cuts[i]);
  return splits;
}

void choose_shapes(Plan& plan, Random& random, size_t largest) {
  const size_t arrays = plan.collective == Collective::kBarrier    ? 0
                        : plan.collective == Collective::kAlltoall ? 1
                                                                   : 1 + random() % 4;
  for (size_t i = 0; i < arrays; ++i) plan.tails.push_back(random_tail(random));
  plan.rows.resize(plan.ranks());
  for (size_t i = 0; i < arrays; ++i) {
    size_t row = size_of(plan.dtype);
    for (int64_t dim : plan.tails[i]) row *= static_cast<size_t>(dim);
    int64_t rows = random_rows(random, std::max<size_t>(row, 1), largest);
    for (size_t m = 0; m < plan.ranks(); ++m) {
      if (rows_differ(plan.collective))
        rows = random_rows(random, std::max<size_t>(row, 1), largest);
      plan.rows[m].push_back(rows);
    }
  }
}

void choose_splits(Plan& plan, Random& random) {
  plan.splits.resize(plan.ranks());
  if (below(random, 2) == 0) return;
  if (plan.collective == Collective::kAlltoall)
    for (size_t m = 0; m < plan.ranks(); ++m)
      plan.splits[m] = random_splits(random, plan.rows[m][0], plan.ranks());
  // The same on all ranks, and for all arrays, which then need the same rows.
  if (plan.collective == Collective::kReducescatter) {
    const auto splits = random_splits(random, plan.rows[0][0], plan.ranks());
    for (size_t m = 0; m < plan.ranks(); ++m) {
      plan.splits[m] = splits;
      std::fill(plan.rows[m].begin(), plan.rows[m].end(), plan.rows[m][0]);
    }
  }
}

bool can_twist(const Plan& plan, Twist twist) {
  if (plan.ranks() < 2) return false;
  if (plan.collective == Collective::kBarrier)
    return twist == Twist::kName || twist == Twist::kCollective;
  if (twist == Twist::kOp) return reduces(plan.collective);
  if (twist == Twist::kSplits)
    return plan.collective == Collective::kAlltoall ||
           plan.collective == Collective::kReducescatter;
  if (twist == Twist::kCount) return plan.collective != Collective::kAlltoall;
  return true;
}

std::vector<int64_t> dims_of(const Plan& plan, size_t member, size_t array) {
  std::vector<int64_t> dims{plan.rows[member][array]};
  dims.insert(dims.end(), plan.tails[array].begin(), plan.tails[array].end());
  return dims;
}

size_t row_bytes(const Plan& plan, size_t array) {
  size_t bytes = size_of(plan.dtype);
  for (int64_t dim : plan.tails[array]) bytes *= static_cast<size_t>(dim);
  return bytes;
}

// The rows that `member` sends to, or keeps for, each member.
std::vector<int64_t> shares(const Plan& plan, size_t member, size_t array) {
  if (!plan.splits[member].empty()) return plan.splits[member];
  std::vector<int64_t> even;
  for (size_t m = 0; m < plan.ranks(); ++m)
    even.push_back(
        even_share(plan.rows[member][array], static_cast<int>(plan.ranks()), static_cast<int>(m)));
  return even;
}

Bytes part(const Bytes& array, const std::vector<int64_t>& shares, size_t index, size_t row) {
  int64_t begin = 0;
  for (size_t i = 0; i < index; ++i) begin += shares[i];
  const auto from = array.begin() + begin * static_cast<int64_t>(row);
  return Bytes(from, from + shares[index] * static_cast<int64_t>(row));
}

// The spec of the offender differs in one place.
std::string spec_text(const Plan& plan, Twist twist) {
  Collective collective = plan.collective;
  DataType dtype = plan.dtype;
  ReduceOp op = plan.op;
  if (twist == Twist::kCollective)
    collective =
        collective == Collective::kAllreduce ? Collective::kBroadcast : Collective::kAllreduce;
  if (twist == Twist::kDtype)
    dtype = dtype == DataType::kFloat32 ? DataType::kInt32 : DataType::kFloat32;
  if (twist == Twist::kOp) op = op == ReduceOp::kSum ? ReduceOp::kMax : ReduceOp::kSum;
  return std::string(name_of(collective)) + " dtype=" + std::string(name_of(dtype)) +
         " op=" + std::string(name_of(op)) + " root=" + std::to_string(plan.root) +
         " set=" + std::to_string(plan.process_set) + " prescale=" + std::to_string(plan.prescale) +
         " postscale=" + std::to_string(plan.postscale) + " " + plan.options + "name=plan " +
         std::to_string(plan.seed) + (twist == Twist::kName ? " twisted" : "");
}

}  // namespace

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Plan random_plan(uint64_t seed, const std::vector<int>& members, int process_set, size_t largest) {
  Random random(seed);
  Plan plan{};
  plan.seed = seed;
  plan.members = members;
  plan.process_set = process_set;
  plan.collective = kMany[random() % (below(random, 3) ? 2 : std::size(kMany))];
  plan.dtype = static_cast<DataType>(random() % static_cast<uint64_t>(DataType::kCount));
  if (reduces(plan.collective) && !is_reducible(plan.dtype))
    plan.dtype = static_cast<DataType>(random() % 8);
  plan.op = static_cast<ReduceOp>(random() % static_cast<uint64_t>(ReduceOp::kCount));
  plan.root = below(random, static_cast<int>(plan.ranks()));
  const bool scaled = is_floating(plan.dtype) && below(random, 4) == 0;
  plan.prescale = scaled ? 0.25 * below(random, 9) - 1 : 1;
  plan.postscale = scaled ? 0.5 : 1;
  const bool sized_later =
      plan.collective == Collective::kAllgather || plan.collective == Collective::kAlltoall;
  const bool in_place_fits =
      plan.collective == Collective::kAllreduce || plan.collective == Collective::kBroadcast;
  plan.where = sized_later                              ? Output::kAllocated
               : in_place_fits && below(random, 2) == 0 ? Output::kInPlace
                                                        : Output::kApart;
  choose_shapes(plan, random, largest);
  choose_splits(plan, random);
  const auto twist = static_cast<Twist>(1 + below(random, static_cast<int>(Twist::kLast) - 1));
  if (below(random, 5) == 0 && can_twist(plan, twist)) plan.twist = twist;
  plan.offender = random() % plan.ranks();
  return plan;
}

Plan random_plan_between_hosts(uint64_t seed, const std::vector<int>& members, int process_set,
                               size_t largest) {
  Plan plan = random_plan(seed, members, process_set, largest);
  plan.whole_numbers = true;
  // Scaled products need more bits than there are; which zero a minimum takes is a matter of order.
  if (plan.op == ReduceOp::kProduct || plan.prescale == 0) plan.prescale = plan.postscale = 1;
  if (plan.collective != Collective::kAllreduce) return plan;
  const char* const algorithms[] = {"",
                                    "",
                                    "algorithm=ring ",
                                    "algorithm=recursive_doubling ",
                                    "algorithm=halving_doubling ",
                                    "algorithm=hierarchical "};
  plan.options = algorithms[seed % std::size(algorithms)];
  const char* const wires[] = {"", "wire=float16 ", "wire=bfloat16 "};
  if (plan.dtype == DataType::kFloat32 && plan.twist != Twist::kDtype)
    plan.options += wires[seed / 5 % std::size(wires)];
  return plan;
}

Plan random_plan_on_gpus(uint64_t seed, const std::vector<int>& members, int process_set,
                         size_t largest, int gpus) {
  Plan plan = random_plan_between_hosts(seed, members, process_set, largest);
  plan.options = "";
  plan.gpus = plan.collective != Collective::kBarrier ? gpus : 0;
  // NCCL has factors for sums only.
  if (plan.op != ReduceOp::kSum) plan.prescale = plan.postscale = 1;
  if (plan.twist == Twist::kOp) plan.prescale = plan.postscale = 1;
  return plan;
}

std::string Plan::describe() const {
  std::string s = "plan " + std::to_string(seed) + ": " + std::string(name_of(collective)) +
                  " of " + std::string(name_of(dtype)) + ", " + std::string(name_of(op)) +
                  ", output " + std::to_string(static_cast<int>(where)) + ", twist " +
                  std::to_string(static_cast<int>(twist)) + ", set " + std::to_string(process_set) +
                  ", " + options;
  for (size_t i = 0; i < arrays(); ++i) {
    s += " | rows";
    for (size_t m = 0; m < ranks(); ++m) s += " " + std::to_string(rows[m][i]);
    s += " of " + std::to_string(row_bytes(*this, i)) + " bytes";
  }
  return s;
}

Bytes Plan::input(size_t member, size_t array) const {
  const size_t elements =
      static_cast<size_t>(rows[member][array]) * row_bytes(*this, array) / size_of(dtype);
  if (whole_numbers && reduces(collective))
    return small_numbers(dtype, elements, seed * 1000 + member * 10 + array);
  return random_bytes(dtype, elements, seed * 1000 + member * 10 + array,
                      op == ReduceOp::kSum ? 8 : 2);
}

Bytes Plan::expected(size_t member, size_t array) const {
  if (collective == Collective::kBroadcast) return input(static_cast<size_t>(root), array);
  std::vector<Bytes> terms;
  for (size_t m = 0; m < ranks(); ++m) terms.push_back(input(m, array));
  const size_t row = row_bytes(*this, array);
  if (collective == Collective::kReducescatter)
    for (Bytes& term : terms) term = part(term, shares(*this, member, array), member, row);
  if (reduces(collective)) return reduced(dtype, op, terms, prescale, postscale);
  Bytes joined;
  for (size_t m = 0; m < ranks(); ++m) {
    const Bytes piece = collective == Collective::kAllgather
                            ? terms[m]
                            : part(terms[m], shares(*this, m, array), member, row);
    joined.insert(joined.end(), piece.begin(), piece.end());
  }
  return joined;
}

std::unique_ptr<TestRequest> Plan::request(size_t member) const {
  const Twist spoiled = member == offender ? twist : Twist::kNone;
  auto test_request = std::make_unique<TestRequest>(spec_text(*this, spoiled));
  for (size_t i = 0; i < arrays(); ++i) {
    std::vector<int64_t> dims = dims_of(*this, member, i);
    // A dtype or collective of another size needs other arrays; which ones does not matter.
    if (spoiled == Twist::kShape) dims.push_back(2);
    size_t elements = 1;
    for (int64_t dim : dims) elements *= static_cast<size_t>(dim);
    Bytes bytes(elements * test_request->element_size());
    if (spoiled == Twist::kNone) bytes = input(member, i);
    size_t output_bytes = bytes.size();
    if (collective == Collective::kReducescatter && spoiled == Twist::kNone)
      output_bytes = static_cast<size_t>(shares(*this, member, i)[member]) * row_bytes(*this, i);
    test_request->add(bytes, dims, where, output_bytes, seed % 4);
  }
  if (spoiled == Twist::kCount)
    test_request->add(Bytes(test_request->element_size()), {1}, where,
                      test_request->element_size());
  if (arrays() > 0) test_request->splits = splits[member];
  if (spoiled == Twist::kSplits) test_request->splits.assign(ranks(), rows[member][0] + 1);
  if (gpus > 0) test_request->gpu = OnGpu{members[member] % gpus, nullptr, nullptr};
  return test_request;
}

void run_plan(const Plan& plan, int rank, Engine& engine) {
  const auto place = std::find(plan.members.begin(), plan.members.end(), rank);
  if (place == plan.members.end()) return;
  const auto member = static_cast<size_t>(place - plan.members.begin());
  const auto request = plan.request(member);
  Status status;
  if (plan.seed % 2) {
    engine.submit(request.get());
    status = request->wait();
  } else {
    status = engine.run(*request);
  }
  const std::string description = plan.describe();
  if (plan.twist != Twist::kNone) {
    if (status.code() != RINGAR_MISMATCH)
      fail(__FILE__, __LINE__, description + ": no mismatch, but: " + status.message());
    EXPECT_CONTAINS(status.message(), "rank " + std::to_string(rank) + " | ");
    std::vector<int> peers = plan.members;
    peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(plan.offender));
    EXPECT_CONTAINS(status.message(), "\n  " + ranks_in_short(peers));
    EXPECT_CONTAINS(status.message(),
                    "\n  rank " + std::to_string(plan.members[plan.offender]) + ": ");
    return;
  }
  if (status.ok() && plan.gpus > 0) status = engine.synchronize_gpu();
  if (!status.ok()) fail(__FILE__, __LINE__, description + " failed: " + status.message());
  for (size_t i = 0; i < plan.arrays(); ++i) {
    const int64_t at = first_difference(plan.dtype, request->output(i), plan.expected(member, i));
    if (at >= 0)
      fail(__FILE__, __LINE__,
           description + ": array " + std::to_string(i) + " differs at " + std::to_string(at));
    if (plan.where != Output::kInPlace) EXPECT(request->input_is_untouched(i));
  }
}

}  // namespace ringar::test
