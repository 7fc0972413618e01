// The chain of a recurrent layer on its way back: v_k = dL/dh_{n-k}, M_k = the Jacobian of step
// n - k + 1, made when it is needed and nowhere kept.

#pragma once

#include <vector>

#include "scan/chain.h"
#include "scan/recurrent.h"

namespace ringar {

// `d_states` (batch, steps, units) or null, as in Backward; `d_h` of the same shape and `d_h0`
// (batch, units) are the results, d_h whole, what comes from later steps included.
template <typename Cell, typename T>
class RecurrentChain : public Chain<T> {
 public:
  RecurrentChain(const Cell& cell, const ScannedKernels<Cell, T>& kernels, const T* d_states,
                 T* d_h, T* d_h0)
      : Chain<T>(cell.shape.steps, cell.shape.batch, cell.shape.units, true),
        cell_(cell),
        kernels_(kernels),
        d_states_(d_states),
        d_h_(d_h),
        d_h0_(d_h0),
        prepared_(static_cast<size_t>(jacobian_scratch(cell))) {
    kernels.prepare_jacobians(cell, prepared_.data());
  }

  const T* matrices(int64_t k, int64_t first, int64_t last, T* scratch) const override {
    kernels_.jacobians(cell_, prepared_.data(), this->length - k, first, last, scratch);
    return scratch;
  }
  // The gradient of h_t comes in with v = dL/dh_t; nothing comes in at h_0.
  Rows<const T> addends(int64_t k) const override {
    if (!d_states_ || k == this->length) return {};
    return {d_states_ + (this->length - k - 1) * this->size, this->length * this->size};
  }
  bool has_addends() const override { return d_states_ != nullptr; }
  Rows<T> results(int64_t k) const override {
    if (k == this->length) return {d_h0_, this->size};
    return {d_h_ + (this->length - k - 1) * this->size, this->length * this->size};
  }

 private:
  const Cell& cell_;
  const ScannedKernels<Cell, T>& kernels_;
  const T* d_states_;
  T *d_h_, *d_h0_;
  std::vector<T> prepared_;
};

}  // namespace ringar
