// The product of a sparse layer's weights with states, and its gradient (sparse/sparse.h).
//
//   RingarSparseMultiply   values (entries), bias (rows), own (n, batch), ghosts (m, batch),
//                          offsets (rows + 1), columns (entries)          -> (rows, batch)
//   RingarSparseGradient   values (entries), upstream (rows, batch), own, ghosts,
//                          starts (n + m + 1), rows (entries), places (entries)
//                          -> d_values (entries), d_own, d_ghosts
//
// The bias may be absent; indices are int32, and Python has checked that they are in range.
// Options: states (of the gradient: 0 leaves d_own and d_ghosts empty), threads.

#include "sparse/sparse.h"

#include <algorithm>

#include "kernels/computation.h"
#include "scan/workers.h"

namespace ringar {
namespace {

enum : size_t { kValues, kBias, kOwn, kGhosts, kOffsets, kColumns };
enum : size_t { kUpstream = 1, kStarts = 4, kRows, kPlaces };

constexpr int64_t kStretchesPerThread = 4;

// Calls work(first, last) for stretches of rows, or columns, with nearly equally many entries.
template <typename Work>
void for_stretches(int threads, const int32_t* offsets, int64_t count, const Work& work) {
  if (count == 0) return;
  const int64_t tasks = threads == 1 ? 1 : std::min(count, threads * kStretchesPerThread);
  const auto begin_of = [&](int64_t task) -> int64_t {
    if (task == tasks) return count;
    const int64_t entries = offsets[count] * task / tasks;
    return std::lower_bound(offsets, offsets + count, entries) - offsets;
  };
  parallel_for(threads, tasks, [&](int64_t task) { work(begin_of(task), begin_of(task + 1)); });
}

Status check_states(const char* name, const std::vector<Dims>& in) {
  const Dims &interior = in[kOwn], &ghosts = in[kGhosts];
  if (interior.size() != 2) return expect_dims(name, "own states", interior, {-1, -1});
  if (ghosts.size() != 2) return expect_dims(name, "states of ghosts", ghosts, {-1, interior[1]});
  return expect_dims(name, "states of ghosts", ghosts, {ghosts[0], interior[1]});
}

Status check_multiply(const std::vector<Dims>& in) {
  constexpr const char* name = "RingarSparseMultiply";
  RINGAR_RETURN_IF_ERROR(check_states(name, in));
  RINGAR_RETURN_IF_ERROR(expect_dims(name, "columns", in[kColumns], in[kValues]));
  if (in[kBias] == Dims{0}) return {};
  return expect_dims(name, "bias", in[kBias], {in[kOffsets][0] - 1});
}

Status check_gradient(const std::vector<Dims>& in) {
  constexpr const char* name = "RingarSparseGradient";
  RINGAR_RETURN_IF_ERROR(check_states(name, in));
  const Dims &interior = in[kOwn], &ghosts = in[kGhosts];
  RINGAR_RETURN_IF_ERROR(expect_dims(name, "starts", in[kStarts], {interior[0] + ghosts[0] + 1}));
  RINGAR_RETURN_IF_ERROR(expect_dims(name, "rows", in[kRows], in[kValues]));
  RINGAR_RETURN_IF_ERROR(expect_dims(name, "places", in[kPlaces], in[kValues]));
  return expect_dims(name, "upstream", in[kUpstream], {in[kUpstream][0], interior[1]});
}

std::vector<Dims> multiply_shapes(const Options&, const std::vector<Dims>& in) {
  return {{in[kOffsets][0] - 1, in[kOwn][1]}};
}

std::vector<Dims> gradient_shapes(const Options& options, const std::vector<Dims>& in) {
  if (options.number("states") == 0) return {in[kValues], {0, in[kOwn][1]}, {0, in[kOwn][1]}};
  return {in[kValues], in[kOwn], in[kGhosts]};
}

template <typename T>
TwoPartRows<const T> states_of(const Inputs& in) {
  return {in.at<T>(kOwn), in.at<T>(kGhosts), in.dims[kOwn][0], in.dims[kOwn][1]};
}

template <typename T>
void multiply(const Options& options, const Inputs& in, const Outputs& outputs) {
  const SparseProduct<T> product{in.at<int32_t>(kOffsets), in.at<int32_t>(kColumns),
                                 in.at<T>(kValues),        in.at<T>(kBias),
                                 states_of<T>(in),         static_cast<T*>(outputs[0])};
  const int64_t rows = in.dims[kOffsets][0] - 1;
  for_stretches(options.threads(), product.offsets, rows, [&](int64_t first, int64_t last) {
    sparse_kernels<T>().multiply(product, first, last);
  });
}

template <typename T>
void differentiate(const Options& options, const Inputs& in, const Outputs& outputs) {
  const auto output = [&](size_t index) { return static_cast<T*>(outputs[index]); };
  const int64_t interior = in.dims[kOwn][0], batch = in.dims[kOwn][1];
  const SparseGradient<T> gradient{in.at<int32_t>(kStarts),
                                   in.at<int32_t>(kRows),
                                   in.at<int32_t>(kPlaces),
                                   in.at<T>(kValues),
                                   in.at<T>(kUpstream),
                                   states_of<T>(in),
                                   options.number("states") != 0,
                                   {output(1), output(2), interior, batch},
                                   output(0)};
  if (batch == 0) std::fill_n(gradient.d_values, in.dims[kValues][0], T(0));
  const int64_t columns = in.dims[kStarts][0] - 1;
  for_stretches(options.threads(), gradient.starts, columns, [&](int64_t first, int64_t last) {
    sparse_kernels<T>().differentiate(gradient, first, last);
  });
}

}  // namespace

const Computation& sparse_multiply_computation() {
  static const Computation computation{"RingarSparseMultiply", "ringar_sparse_multiply",
                                       check_multiply,         multiply_shapes,
                                       multiply<float>,        multiply<double>};
  return computation;
}

const Computation& sparse_gradient_computation() {
  static const Computation computation{"RingarSparseGradient", "ringar_sparse_gradient",
                                       check_gradient,         gradient_shapes,
                                       differentiate<float>,   differentiate<double>};
  return computation;
}

}  // namespace ringar
