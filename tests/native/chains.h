// Chains with known results: random matrices of many kinds, and the serial product in double.

#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
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
  explicit ChainArrays(const ChainCase& of) : of_(of) {
    std::mt19937_64 random(static_cast<uint64_t>(of.length * 7919 + of.batch * 31 + of.size));
    matrices.resize(static_cast<size_t>(of.length * of.batch * of.size * of.size));
    results.resize(static_cast<size_t>((of.length + 1) * of.batch * of.size));
    if (of.has_addends) addends.resize(static_cast<size_t>(of.length * of.batch * of.size));
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < matrices.size(); i += static_cast<size_t>(of.size * of.size))
      fill(&matrices[i], [&] { return normal(random); });
    for (T& a : addends) a = static_cast<T>(normal(random));
    for (int64_t i = 0; i < of.batch * of.size; ++i) *at(0, i) = static_cast<T>(normal(random));
  }

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
  double addend(int64_t k, int64_t index) const {
    const int64_t step = of_.adjoint ? of_.length - k : k - 1;
    if (!of_.has_addends) return 0;
    return static_cast<double>(addends[static_cast<size_t>(step * of_.batch * of_.size + index)]);
  }

  // All v_k in double, one matrix after the other.
  std::vector<std::vector<double>> serial() {
    std::vector<std::vector<double>> all(1);
    for (int64_t i = 0; i < of_.batch * of_.size; ++i)
      all[0].push_back(static_cast<double>(*at(0, i)));
    for (int64_t k = 1; k <= of_.length; ++k) all.push_back(step(k, all.back()));
    return all;
  }

  std::vector<T> matrices, addends, results;

 private:
  std::vector<double> step(int64_t k, const std::vector<double>& from) const {
    std::vector<double> to;
    for (int64_t b = 0; b < of_.batch; ++b)
      for (int64_t i = 0; i < of_.size; ++i) {
        const T* m = matrix(k, b);
        double sum = addend(k, b * of_.size + i);
        for (int64_t j = 0; j < of_.size; ++j)
          sum += static_cast<double>(of_.adjoint ? m[j * of_.size + i] : m[i * of_.size + j]) *
                 from[static_cast<size_t>(b * of_.size + j)];
        to.push_back(sum);
      }
    return to;
  }

  void fill(T* m, const std::function<double()>& draw) {
    const int64_t n = of_.size;
    if (of_.kind == Kind::kOrthogonal) return reflect(m, draw);
    const double radius = of_.kind == Kind::kGrowing     ? 1.004
                          : of_.kind == Kind::kShrinking ? 0.99
                                                         : 1;
    for (int64_t i = 0; i < n * n; ++i)
      m[i] = static_cast<T>(radius * draw() / std::sqrt(static_cast<double>(n)));
    if (of_.kind == Kind::kZeros)
      for (int64_t i = 0; i < n * n; i += 2) m[i] = 0;
  }

  // A Householder reflection.
  void reflect(T* m, const std::function<double()>& draw) {
    const int64_t n = of_.size;
    std::vector<double> v;
    double norm = 0;
    for (int64_t i = 0; i < n; ++i) {
      v.push_back(draw());
      norm += v.back() * v.back();
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        m[i * n + j] = static_cast<T>((i == j ? 1 : 0) - 2 * v[static_cast<size_t>(i)] *
                                                             v[static_cast<size_t>(j)] / norm);
  }

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
