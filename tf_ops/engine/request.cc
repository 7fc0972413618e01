#include "engine/request.h"

#include <numeric>

namespace ringar {
namespace {

std::string list(const std::vector<int64_t>& values) {
  std::string s = "[";
  for (size_t i = 0; i < values.size(); ++i) s += (i ? ", " : "") + text(values[i]);
  return s + "]";
}

std::string reject_reduction(const Spec& spec) {
  if (!is_reducible(spec.dtype))
    return "expected a dtype that can be reduced (float16, bfloat16, float32, float64, int8, "
           "uint8, int32, int64), received " +
           std::string(name_of(spec.dtype)) + "; cast it first, or use allgather";
  if (!is_floating(spec.dtype) && (spec.prescale != 1.0 || spec.postscale != 1.0 || spec.mean != 0))
    return "expected a floating dtype with op=Average, prescale_factor or postscale_factor, "
           "received " +
           std::string(name_of(spec.dtype)) +
           ", where the result would be cut off; use op=Sum and divide, or cast first";
  const bool is_half = spec.wire == DataType::kFloat16 || spec.wire == DataType::kBfloat16;
  if (spec.wire != DataType::kCount && (!is_half || spec.dtype != DataType::kFloat32))
    return "expected float32 to be compressed to float16 or bfloat16, received " +
           std::string(name_of(spec.dtype)) + " to " + std::string(name_of(spec.wire));
  return "";
}

std::string reject_shares(const Spec& spec, const std::vector<Tensor>& tensors) {
  // Three numbers, or the bytes of three floats (engine/shares.h).
  const int64_t elements = size_of(spec.dtype) < sizeof(float) ? 6 : 3;
  const bool control = !tensors.empty() && tensors[0].shape.elements() == elements;
  const bool sum = spec.collective == Collective::kAllreduce && spec.op == ReduceOp::kSum;
  if (control && sum && is_floating(spec.dtype)) return "";
  return "expected an allreduce with op=sum of a floating dtype, whose first array has " +
         text(elements) + " elements, for a weighted average, received " +
         std::string(name_of(spec.collective)) + " with op=" + std::string(name_of(spec.op)) +
         " of " + text(static_cast<int64_t>(tensors.size())) + " arrays of " +
         std::string(name_of(spec.dtype));
}

std::string reject_splits(const std::vector<int64_t>& splits, int64_t rows, int ranks) {
  if (static_cast<int>(splits.size()) != ranks)
    return "expected one split per rank of the process set (" + text(ranks) + "), received " +
           text(static_cast<int64_t>(splits.size())) + ": " + list(splits);
  for (int64_t split : splits)
    if (split < 0) return "expected splits of 0 or more, received " + list(splits);
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (sum != rows)
    return "expected splits that add up to the first dimension (" + text(rows) + "), received " +
           list(splits) + ", which add up to " + text(sum);
  return "";
}

}  // namespace

std::string Request::rejection(int ranks) const {
  if (reduces(spec.collective)) {
    const std::string why = reject_reduction(spec);
    if (!why.empty()) return why;
  }
  if (spec.shares >= 0) {
    const std::string why = reject_shares(spec, tensors);
    if (!why.empty()) return why;
  }
  if (spec.collective == Collective::kBroadcast && (spec.root < 0 || spec.root >= ranks))
    return "expected a root rank from 0 to " + text(ranks - 1) + ", received " + text(spec.root);

  if (spec.collective == Collective::kAllreduce || spec.collective == Collective::kBroadcast)
    for (const Tensor& tensor : tensors)
      if (tensor.output == nullptr && tensor.shape.elements() > 0)
        return "expected memory for every output, received none";

  const bool by_rows = spec.collective == Collective::kAllgather ||
                       spec.collective == Collective::kAlltoall ||
                       spec.collective == Collective::kReducescatter;
  if (!by_rows) return "";
  if (spec.collective == Collective::kAlltoall && tensors.size() != 1)
    return "expected one array, received " + text(static_cast<int64_t>(tensors.size()));
  for (const Tensor& tensor : tensors) {
    if (tensor.shape.ndims == 0)
      return "expected an array of at least one dimension, received a scalar; reshape it to [1]";
    if (!splits.empty()) {
      const std::string why = reject_splits(splits, tensor.shape.rows(), ranks);
      if (!why.empty()) return why;
    }
  }
  return "";
}

}  // namespace ringar
