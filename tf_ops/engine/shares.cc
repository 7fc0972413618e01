#include "engine/shares.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/reduce.h"

namespace ringar {
namespace {

using Numbers = std::array<double, Shares::kControlElements>;

// A control vector in the dtype of its collective.
class Vector {
 public:
  explicit Vector(DataType dtype) : dtype_(dtype) {}

  Numbers read(const std::byte* from) const {
    Numbers numbers{};
    if (dtype_ == DataType::kFloat64) {
      std::memcpy(numbers.data(), from, sizeof numbers);
      return numbers;
    }
    std::array<float, Shares::kControlElements> floats{};
    if (dtype_ == DataType::kFloat32)
      std::memcpy(floats.data(), from, sizeof floats);
    else
      convert(dtype_, DataType::kFloat32, from, reinterpret_cast<std::byte*>(floats.data()),
              floats.size());
    for (size_t i = 0; i < floats.size(); ++i) numbers[i] = static_cast<double>(floats[i]);
    return numbers;
  }

  void write(const Numbers& numbers, std::byte* to) const {
    if (dtype_ == DataType::kFloat64) {
      std::memcpy(to, numbers.data(), sizeof numbers);
      return;
    }
    std::array<float, Shares::kControlElements> floats{};
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(numbers[i]);
    if (dtype_ == DataType::kFloat32)
      std::memcpy(to, floats.data(), sizeof floats);
    else
      convert(DataType::kFloat32, dtype_, reinterpret_cast<const std::byte*>(floats.data()), to,
              floats.size());
  }

 private:
  const DataType dtype_;
};

// The arrays behind the control vector. It gives the request its inputs back, which may run again.
class Arrays {
 public:
  explicit Arrays(Request& request) : request_(request), control_(request.tensors[0].input) {}
  ~Arrays() {
    request_.tensors[0].input = control_;
    for (size_t i = 0; i < inputs_.size(); ++i) request_.tensors[i + 1].input = inputs_[i];
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  // Makes the arrays of this rank count `factor` times; the outputs' memory holds the products.
  void scale_inputs(double factor) {
    for (size_t i = 1; i < request_.tensors.size(); ++i) {
      Tensor& t = request_.tensors[i];
      inputs_.push_back(t.input);
      if (factor == 0.0)
        std::memset(t.output, 0, bytes(t));  // whatever the input holds, NaN included
      else
        scale(t, t.input, factor);
      t.input = t.output;
    }
  }
  void scale_outputs(double factor) {
    for (size_t i = 1; i < request_.tensors.size(); ++i)
      scale(request_.tensors[i], request_.tensors[i].output, factor);
  }

 private:
  size_t bytes(const Tensor& t) const {
    return static_cast<size_t>(t.shape.elements()) * request_.element_size();
  }
  void scale(const Tensor& t, const std::byte* from, double factor) {
    const Reduction product{request_.spec.dtype, ReduceOp::kSum, factor};
    reduce(product, &from, 1, t.output, static_cast<size_t>(t.shape.elements()));
  }

  Request& request_;
  const std::byte* const control_;
  std::vector<const std::byte*> inputs_;  // those that were replaced
};

// The largest of the ranks' numbers. It has the name of the collective before which it runs, since
// errors about ranks that do something else show it.
class Largest : public InternalRequest {
 public:
  Largest(const Spec& of, double* number) {
    spec_.collective = Collective::kAllreduce;
    spec_.dtype = DataType::kFloat64;
    spec_.op = ReduceOp::kMax;
    spec_.process_set = of.process_set;
    spec_.name = of.name;
    auto* bytes = reinterpret_cast<std::byte*>(number);
    tensors.push_back({bytes, bytes, Shape()});
  }
};

}  // namespace

void Shares::begin_training() {
  asks_to_stop.store(false);
  stop_was_seen.store(false);
  const std::lock_guard<std::mutex> lock(mutex_);
  references_.clear();
}

Status Shares::agree(Communicator& set, const Request& request, double share, double* reference) {
  const std::pair<int32_t, int32_t> key{request.spec.process_set, request.spec.shares};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto reference_of_key = references_.find(key);
    if (reference_of_key != references_.end()) {
      *reference = reference_of_key->second;
      return {};
    }
  }
  *reference = share;
  Largest largest(request.spec, reference);
  RINGAR_RETURN_IF_ERROR(set.run(largest));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (*reference > 0) references_[key] = *reference;
  return {};
}

Status Shares::own_share(Communicator& set, const Request& request, const Control& control,
                         double* share) {
  *share = 1.0;
  if (request.spec.shares > 0 && control.share >= 0 && set.size() > 1) {
    double reference = 0;
    RINGAR_RETURN_IF_ERROR(agree(set, request, control.share, &reference));
    if (reference > 0) *share = control.share / reference;
  }
  if (control.idle != 0) *share = 0.0;
  return {};
}

Status Shares::run(Communicator& set, Request& request) {
  if (!request.rejection(set.size()).empty()) return set.run(request);  // refused on all ranks
  const Spec& spec = request.spec;
  Tensor& first = request.tensors[0];
  Vector vector(spec.dtype);
  const Numbers numbers = vector.read(first.input);
  const Control control{numbers[0], numbers[1], numbers[2]};
  double share = 1.0;
  RINGAR_RETURN_IF_ERROR(own_share(set, request, control, &share));
  const bool weighted = spec.shares > 0 && set.size() > 1;

  Arrays arrays(request);
  // In place: it is to lie where the other arrays' outputs do.
  vector.write({weighted ? 1.0 - share : 0.0, control.idle, asks_to_stop.load() ? 1.0 : 0.0},
               first.output);
  first.input = first.output;
  if (share != 1.0) arrays.scale_inputs(share);
  RINGAR_RETURN_IF_ERROR(set.run(request));

  const double scale = spec.prescale * spec.postscale;
  Numbers sums = vector.read(first.output);
  for (double& sum : sums) sum = scale != 0 ? sum / scale : 0;
  const double total = set.size() - sums[0];
  const bool uneven = weighted && sums[0] != 0 && total > 1e-6 * set.size();
  const double factor = uneven ? set.size() / total : 1.0;
  if (uneven) arrays.scale_outputs(factor);
  const double stops = std::round(sums[2]);
  vector.write({share * factor, std::round(sums[1]), stops}, first.output);
  if (stops > 0) stop_was_seen.store(true);
  if (control.mark != 0) steps.fetch_add(1);
  return {};
}

}  // namespace ringar
