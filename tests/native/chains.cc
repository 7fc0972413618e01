#include "chains.h"

#include <random>

namespace ringar::test {
namespace {

// Normally distributed.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  double operator()() { return normal_(random_); }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

// A Householder reflection.
template <typename T>
void reflect(int64_t n, T* m, Draw& draw) {
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

template <typename T>
void fill(const ChainCase& of, T* m, Draw& draw) {
  const int64_t n = of.size;
  if (of.kind == Kind::kOrthogonal) return reflect(n, m, draw);
  const double radius = of.kind == Kind::kGrowing ? 1.004 : of.kind == Kind::kShrinking ? 0.99 : 1;
  for (int64_t i = 0; i < n * n; ++i)
    m[i] = static_cast<T>(radius * draw() / std::sqrt(static_cast<double>(n)));
  if (of.kind == Kind::kZeros)
    for (int64_t i = 0; i < n * n; i += 2) m[i] = 0;
}

}  // namespace

template <typename T>
ChainArrays<T>::ChainArrays(const ChainCase& of) : of_(of) {
  Draw draw(static_cast<uint64_t>(of.length * 7919 + of.batch * 31 + of.size));
  matrices.resize(static_cast<size_t>(of.length * of.batch * of.size * of.size));
  results.resize(static_cast<size_t>((of.length + 1) * of.batch * of.size));
  if (of.has_addends) addends.resize(static_cast<size_t>(of.length * of.batch * of.size));
  for (size_t i = 0; i < matrices.size(); i += static_cast<size_t>(of.size * of.size))
    fill(of, &matrices[i], draw);
  for (T& a : addends) a = static_cast<T>(draw());
  for (int64_t i = 0; i < of.batch * of.size; ++i) *at(0, i) = static_cast<T>(draw());
}

template <typename T>
std::vector<std::vector<double>> ChainArrays<T>::serial() {
  std::vector<std::vector<double>> all(1);
  for (int64_t i = 0; i < of_.batch * of_.size; ++i)
    all[0].push_back(static_cast<double>(*at(0, i)));
  for (int64_t k = 1; k <= of_.length; ++k) all.push_back(step(k, all.back()));
  return all;
}

template <typename T>
std::vector<double> ChainArrays<T>::step(int64_t k, const std::vector<double>& from) const {
  std::vector<double> to;
  const int64_t place = of_.adjoint ? of_.length - k : k - 1, rows = of_.batch * of_.size;
  for (int64_t b = 0; b < of_.batch; ++b)
    for (int64_t i = 0; i < of_.size; ++i) {
      const T* m = matrix(k, b);
      double sum =
          of_.has_addends
              ? static_cast<double>(addends[static_cast<size_t>(place * rows + b * of_.size + i)])
              : 0;
      for (int64_t j = 0; j < of_.size; ++j)
        sum += static_cast<double>(of_.adjoint ? m[j * of_.size + i] : m[i * of_.size + j]) *
               from[static_cast<size_t>(b * of_.size + j)];
      to.push_back(sum);
    }
  return to;
}

template class ChainArrays<float>;
template class ChainArrays<double>;

}  // namespace ringar::test
