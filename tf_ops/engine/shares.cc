#include "engine/shares.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/reduce.h"

namespace ringar {
namespace {

// A control vector in memory: in the dtype of its collective, or as floats if that has two bytes.
class Vector {
 public:
  using Numbers = std::array<double, Shares::kControlElements>;

  explicit Vector(DataType dtype) : is_double_(dtype == DataType::kFloat64) {}

  Numbers read(const std::byte* from) const {
    Numbers numbers{};
    if (is_double_) {
      std::memcpy(numbers.data(), from, sizeof numbers);
    } else {
      std::array<float, Shares::kControlElements> floats{};
      std::memcpy(floats.data(), from, sizeof floats);
      std::copy(floats.begin(), floats.end(), numbers.begin());
    }
    return numbers;
  }

  void write(const Numbers& numbers, std::byte* to) const {
    if (is_double_) {
      std::memcpy(to, numbers.data(), sizeof numbers);
      return;
    }
    std::array<float, Shares::kControlElements> floats{};
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(numbers[i]);
    std::memcpy(to, floats.data(), sizeof floats);
  }

 private:
  const bool is_double_;
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

// A few numbers of each rank, reduced. It has the name of the collective before which it runs,
// since errors about ranks that do something else show it.
class OfNumbers : public InternalRequest {
 public:
  OfNumbers(const Spec& of, ReduceOp op, double* numbers, int64_t count) {
    spec_.collective = Collective::kAllreduce;
    spec_.dtype = DataType::kFloat64;
    spec_.op = op;
    spec_.process_set = of.process_set;
    spec_.name = of.name;
    auto* bytes = reinterpret_cast<std::byte*>(numbers);
    tensors.push_back({bytes, bytes, Shape(1, [count](int) { return count; })});
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
  OfNumbers largest(request.spec, ReduceOp::kMax, reference, 1);
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
  const Vector vector(spec.dtype);
  const Numbers numbers = vector.read(first.input);
  const Control control{numbers[0], numbers[1], numbers[2]};
  double share = 1.0;
  RINGAR_RETURN_IF_ERROR(own_share(set, request, control, &share));
  const bool is_weighted = spec.shares > 0 && set.size() > 1;
  const Numbers report{is_weighted ? 1.0 - share : 0.0, control.idle, asks_to_stop ? 1.0 : 0.0};
  const auto answer_of = [&](const Numbers& sums) {
    const double total = set.size() - sums[0];
    const bool is_uneven = is_weighted && sums[0] != 0 && total > 1e-6 * set.size();
    return Answer{is_uneven ? set.size() / total : 1.0, std::round(sums[1]), std::round(sums[2])};
  };

  Arrays arrays(request);
  first.input = first.output;  // in place: it is to lie where the other arrays' outputs do
  Answer answer{};
  if (request.element_size() < sizeof(float)) {
    Numbers sums = report;
    OfNumbers vectors(spec, ReduceOp::kSum, sums.data(), sums.size());
    RINGAR_RETURN_IF_ERROR(set.run(vectors));
    answer = answer_of(sums);
    vector.write({}, first.output);
    if (share * answer.factor != 1.0) arrays.scale_inputs(share * answer.factor);
    RINGAR_RETURN_IF_ERROR(set.run(request));
  } else {
    vector.write(report, first.output);
    if (share != 1.0) arrays.scale_inputs(share);
    RINGAR_RETURN_IF_ERROR(set.run(request));
    const double scale = spec.prescale * spec.postscale;
    Numbers sums = vector.read(first.output);
    for (double& sum : sums) sum = scale != 0 ? sum / scale : 0;
    answer = answer_of(sums);
    if (answer.factor != 1.0) arrays.scale_outputs(answer.factor);
  }
  vector.write({share * answer.factor, answer.idle, answer.stops}, first.output);
  if (answer.stops > 0) stop_was_seen.store(true);
  if (control.mark != 0) steps.fetch_add(1);
  return {};
}

}  // namespace ringar
