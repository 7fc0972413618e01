// Chains with known results: random matrices of many kinds, and the serial product in double.

#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "scan/chain.h"

namespace ringar::test {

// What the matrices of a chain are like; all but kNormal make scans that are easily wrong.
enum class Kind { kNormal, kZeros, kOrthogonal, kGrowing, kShrinking };

struct ChainCase {
  int64_t length, batch, size;
  bool adjoint = false, has_addends = false;
  Kind kind = Kind::kNormal;

  std::string text() const {
    return "length " + std::to_string(length) + ", batch " + std::to_string(batch) + ", size " +
           std::to_string(size) + (adjoint ? ", adjoint" : "") + (has_addends ? ", addends" : "") +
           ", kind " + std::to_string(static_cast<int>(kind));
  }
};

template <typename T>
class ChainArrays {
 public:
  explicit ChainArrays(const ChainCase& of);

  DenseChain<T> chain() {
    return {of_.length,    of_.batch,       of_.size,
            of_.adjoint,   matrices.data(), of_.has_addends ? addends.data() : nullptr,
            results.data()};
  }

  // v_k, k = 0 … length, as (batch, size).
  T* at(int64_t k, int64_t index) {
    const int64_t state = of_.adjoint ? of_.length - k : k;
    return &results[static_cast<size_t>(state * of_.batch * of_.size + index)];
  }
  const T* matrix(int64_t k, int64_t example) const {
    const int64_t step = of_.adjoint ? of_.length - k : k - 1;
    return &matrices[static_cast<size_t>((step * of_.batch + example) * of_.size * of_.size)];
  }

  // All v_k in double, one matrix after the other.
  std::vector<std::vector<double>> serial();

  std::vector<T> matrices, addends, results;

 private:
  std::vector<double> step(int64_t k, const std::vector<double>& from) const;

  const ChainCase of_;
};

// The distance of two vectors, relative to the greater of the second one and `least`.
template <typename Value>
double distance(int64_t size, const Value& received, const double* expected, double least) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < size; ++i) {
    difference += std::pow(received(i) - expected[i], 2);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), least);
}

}  // namespace ringar::test
