// What is scanned: a chain of affine maps v_k = M_k v_{k-1} + a_k, k = 1 … length, one for each
// example of a batch.
//
// The adjoint chain runs through transposed matrices, v_k^T = v_{k-1}^T J_k, as gradients run
// through Jacobians: vectors are rows, and nothing is ever transposed in memory.

#pragma once

#include <cstdint>

#include "scan/matrix.h"

namespace ringar {

template <typename T>
class Chain {
 public:
  Chain(int64_t length, int64_t batch, int64_t size, bool adjoint)
      : length(length), batch(batch), size(size), adjoint(adjoint) {}
  virtual ~Chain() = default;

  const int64_t length, batch, size;
  const bool adjoint;

  // The k-th matrices of the examples [first, last), in place or written to `scratch`, which has
  // room for them. Called by several threads.
  virtual const T* matrices(int64_t k, int64_t first, int64_t last, T* scratch) const = 0;
  // Those of all examples; without data where nothing is added.
  virtual Rows<const T> addends(int64_t k) const = 0;
  virtual bool has_addends() const = 0;
  // Where v_k goes, k = 0 … length; v_0 is there when the scan begins.
  virtual Rows<T> results(int64_t k) const = 0;
};

// Arrays in memory, (length, batch, size, size), (length, batch, size) and (length + 1, batch,
// size), the adjoint chain from their end to their beginning.
template <typename T>
class DenseChain : public Chain<T> {
 public:
  DenseChain(int64_t length, int64_t batch, int64_t size, bool adjoint, const T* matrices,
             const T* addends, T* results)
      : Chain<T>(length, batch, size, adjoint),
        matrices_(matrices),
        addends_(addends),
        results_(results) {}

  const T* matrices(int64_t k, int64_t first, int64_t, T*) const override {
    return matrices_ + (map(k) * this->batch + first) * this->size * this->size;
  }
  Rows<const T> addends(int64_t k) const override {
    return {addends_ ? addends_ + map(k) * this->batch * this->size : nullptr, this->size};
  }
  bool has_addends() const override { return addends_ != nullptr; }
  Rows<T> results(int64_t k) const override {
    const int64_t state = this->adjoint ? this->length - k : k;
    return {results_ + state * this->batch * this->size, this->size};
  }

 private:
  int64_t map(int64_t k) const { return this->adjoint ? this->length - k : k - 1; }

  const T *matrices_, *addends_;
  T* results_;
};

}  // namespace ringar
