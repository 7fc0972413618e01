// RingarScan: matrices (n, batch, size, size), the vector (batch, size) and addends (n, batch,
// size), or none, give the vectors before, between and after the matrices (n + 1, batch, size).
// RingarScanReduce: matrices and addends give the product (batch, size, size) and the addend
// (batch, size) of the whole chain.
//
// Options: adjoint, levels (-1: chosen), threads.

#include "scan/scan.h"

#include <algorithm>

#include "kernels/computation.h"
#include "scan/choice.h"

namespace ringar {
namespace {

template <typename T>
DenseChain<T> chain_of(const Options& options, const Inputs& inputs, size_t addends, T* results) {
  const Dims& dims = inputs.dims[0];
  return {dims[0],         dims[1],
          dims[2],         options.number("adjoint") != 0,
          inputs.at<T>(0), inputs.at<T>(addends),
          results};
}

template <typename T>
int levels_for(const Options& options, const Chain<T>& chain, int threads) {
  const int64_t levels = options.number("levels");
  if (levels >= 0) return static_cast<int>(std::min<int64_t>(levels, 62));
  return choose_levels({chain.length, chain.batch, chain.size}, threads);
}

int threads_of(const Options& options) {
  return static_cast<int>(std::max<int64_t>(options.number("threads"), 1));
}

std::vector<Dims> scan_shapes(const Options&, const std::vector<Dims>& inputs) {
  return {{inputs[0][0] + 1, inputs[0][1], inputs[0][2]}};
}

template <typename T>
void run_scan(const Options& options, const Inputs& inputs, const Outputs& outputs) {
  auto* results = static_cast<T*>(outputs[0]);
  const DenseChain<T> chain = chain_of<T>(options, inputs, 2, results);
  const int threads = threads_of(options);
  const int64_t vectors = chain.batch * chain.size;
  if (vectors == 0) return;
  std::copy_n(inputs.at<T>(1), vectors, chain.results(0).data);
  scan(chain, levels_for(options, chain, threads), threads);
}

std::vector<Dims> reduce_shapes(const Options&, const std::vector<Dims>& inputs) {
  const Dims& dims = inputs[0];
  return {{dims[1], dims[2], dims[2]}, {dims[1], dims[2]}};
}

template <typename T>
void run_reduce(const Options& options, const Inputs& inputs, const Outputs& outputs) {
  const DenseChain<T> chain = chain_of<T>(options, inputs, 1, nullptr);
  auto *product = static_cast<T*>(outputs[0]), *addend = static_cast<T*>(outputs[1]);
  if (!chain.has_addends()) std::fill_n(addend, chain.batch * chain.size, T(0));
  const int threads = threads_of(options);
  reduce_chain(chain, levels_for(options, chain, threads), threads, product, addend);
}

}  // namespace

const Computation& scan_computation() {
  static const Computation computation{"RingarScan", "ringar_scan", scan_shapes, run_scan<float>,
                                       run_scan<double>};
  return computation;
}

const Computation& scan_reduce_computation() {
  static const Computation computation{"RingarScanReduce", "ringar_scan_reduce", reduce_shapes,
                                       run_reduce<float>, run_reduce<double>};
  return computation;
}

}  // namespace ringar
