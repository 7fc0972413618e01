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

// How a chain is to be scanned.
struct Plan {
  int levels, threads;
};

template <typename T>
Plan plan_for(const Options& options, const Chain<T>& chain) {
  const ChainSize size{chain.length, chain.batch, chain.size};
  const auto option = static_cast<int>(options.number("levels"));
  const int levels = option < 0 ? choose_levels(size, options.threads()) : option;
  return {levels, worthwhile_threads(scan_seconds(size, levels, 1), options.threads())};
}

Status check_chain(const char* name, const std::vector<Dims>& inputs, size_t addends) {
  const Dims& m = inputs[0];
  if (m.size() != 4) return expect_dims(name, "matrices", m, {-1, -1, -1, -1});
  RINGAR_RETURN_IF_ERROR(expect_dims(name, "matrices", m, {m[0], m[1], m[2], m[2]}));
  if (inputs[addends] == Dims{0}) return {};
  return expect_dims(name, "addends", inputs[addends], {m[0], m[1], m[2]});
}

Status check_scan(const std::vector<Dims>& inputs) {
  RINGAR_RETURN_IF_ERROR(check_chain("RingarScan", inputs, 2));
  return expect_dims("RingarScan", "vector", inputs[1], {inputs[0][1], inputs[0][2]});
}

Status check_reduce(const std::vector<Dims>& inputs) {
  return check_chain("RingarScanReduce", inputs, 1);
}

std::vector<Dims> scan_shapes(const Options&, const std::vector<Dims>& inputs) {
  return {{inputs[0][0] + 1, inputs[0][1], inputs[0][2]}};
}

template <typename T>
void run_scan(const Options& options, const Inputs& inputs, const Outputs& outputs) {
  auto* results = static_cast<T*>(outputs[0]);
  const DenseChain<T> chain = chain_of<T>(options, inputs, 2, results);
  const int64_t vectors = chain.batch * chain.size;
  if (vectors == 0) return;
  std::copy_n(inputs.at<T>(1), vectors, chain.results(0).data);
  const Plan plan = plan_for(options, chain);
  scan(chain, plan.levels, plan.threads);
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
  const Plan plan = plan_for(options, chain);
  reduce_chain(chain, plan.levels, plan.threads, product, addend);
}

}  // namespace

const Computation& scan_computation() {
  static const Computation computation{"RingarScan", "ringar_scan",   check_scan,
                                       scan_shapes,  run_scan<float>, run_scan<double>};
  return computation;
}

const Computation& scan_reduce_computation() {
  static const Computation computation{"RingarScanReduce", "ringar_scan_reduce",
                                       check_reduce,       reduce_shapes,
                                       run_reduce<float>,  run_reduce<double>};
  return computation;
}

}  // namespace ringar
