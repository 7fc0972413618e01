// One collective on its way through the engine: what to do, on which arrays, and whom to tell.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/spec.h"
#include "engine/status.h"

namespace ringar {

// Dimensions of an array. Those beyond the eighth are folded into it: nothing here needs them
// apart, and a request stays free of allocations. `folded` keeps a hash of them, which ranks
// compare.
struct Shape {
  static constexpr int kMaxDims = 8;

  int32_t ndims = 0;
  int64_t dims[kMaxDims] = {};
  uint64_t folded = 0;

  Shape() = default;
  template <typename GetDim>
  Shape(int count, GetDim get_dim) {
    for (int i = 0; i < count; ++i) append(get_dim(i));
  }
  void append(int64_t dim) {
    if (ndims < kMaxDims) {
      dims[ndims++] = dim;
    } else {
      dims[kMaxDims - 1] *= dim;
      folded = (folded + static_cast<uint64_t>(dim) + 1) * 0x100000001b3u;
    }
  }

  int64_t rows() const { return ndims == 0 ? 1 : dims[0]; }
  int64_t row_elements() const {
    int64_t n = 1;
    for (int i = 1; i < ndims; ++i) n *= dims[i];
    return n;
  }
  int64_t elements() const { return rows() * row_elements(); }
};

struct Tensor {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  Shape shape;  // of the input
};

// Where arrays are that are not in the memory of the host, and in which stream they are used. The
// collective is enqueued there, and the request complete before it has ended.
struct OnGpu {
  int device = 0;
  void* stream = nullptr;                       // a CUstream; null: the default one
  std::shared_ptr<struct Enqueued> enqueued{};  // engine/gpu_watch.h; filled by the engine
};

// TensorFlow numbers steps at random, those of a `tf.function` by negative numbers.
constexpr int64_t kNoStep = std::numeric_limits<int64_t>::min();

class Request {
 public:
  explicit Request(const Spec& spec) : spec(spec) {}
  virtual ~Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Memory for output `index` with `rows` rows, when only the exchange tells how many; null if
  // there is none to be had.
  virtual std::byte* allocate(size_t index, int64_t rows) = 0;

  // Called when the ranks have done the request, before the next one.
  virtual Status conclude() { return {}; }

  // The last call that a request gets; it may delete itself here.
  virtual void complete(const Status& status) = 0;

  size_t element_size() const { return size_of(spec.dtype); }
  size_t row_bytes(size_t index) const {
    return static_cast<size_t>(tensors[index].shape.row_elements()) * element_size();
  }
  size_t input_bytes() const {
    size_t elements = 0;
    for (const Tensor& t : tensors) elements += static_cast<size_t>(t.shape.elements());
    return elements * element_size();
  }

  // Why this rank cannot take part, or "". The other ranks are told, so that all of them raise and
  // none waits.
  virtual std::string rejection(int ranks) const;

  const Spec& spec;
  std::vector<Tensor> tensors;
  std::optional<OnGpu> gpu;
  std::vector<int64_t> splits;    // rows per rank, alltoall and reducescatter; empty: even
  uint64_t ticket = 0;            // drawn from the engine before it came, or 0
  int64_t step = kNoStep;         // of TensorFlow, if it comes from there
  int64_t submitted_ns = 0;       // when it was handed to the engine, if there is a timeline
  std::vector<int64_t> received;  // rows that came, per array and rank; filled by the engine

  class Waiter* waiter =
      nullptr;  // the engine's own: who is told instead of complete(), if anybody
};

// A request that the engine makes for itself: its caller waits for the end.
class InternalRequest : public Request {
 public:
  explicit InternalRequest(Spec spec = {}) : Request(spec_), spec_(std::move(spec)) {}
  std::byte* allocate(size_t, int64_t) override { return nullptr; }
  void complete(const Status&) override {}

 protected:
  Spec spec_;
};

// How `rows` are dealt to `ranks` when no splits are given: the first ones get one more.
inline int64_t even_share(int64_t rows, int ranks, int rank) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

}  // namespace ringar
