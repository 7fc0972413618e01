// The model counts what the essay of scan.cc counts, and takes for each count a time that
// benchmarks/scan measures (one core, AVX-512, float32). It is rough, and so a tree has to
// promise a good deal to be chosen.
//
//   two matrices        2 ns + H^3 / 60 GHz; below 8 columns, where vectors are not full, / 22 GHz
//   matrix and vector   3 ns + H^2 / 27 GHz
//   node of the tree    8 ns for a group of examples: finding it, the call
//   Jacobian            gates H^2 / 20 GHz; 1.5 of them for each step, see scan_counts.py
//   step of a layer     20 ns of latency; gates H^2 / 45 GHz and 0.3 ns H for each example
//   waking threads      10 us, each time that all of them begin together

#include "scan/choice.h"

#include <algorithm>

#include "scan/scan.h"

namespace ringar {
namespace {

constexpr double kNode = 8e-9;
constexpr double kWaking = 10e-6;
constexpr double kExamplesPerGroup = 16;
constexpr double kGain = 1.5;  // what a tree must promise

double product_seconds(double size) {
  return 2e-9 + size * size * size / (size < 8 ? 22e9 : 60e9);
}

double apply_seconds(double size) {
  return 3e-9 + size * size / 27e9;
}

// Those who can work at the same time on the serial chain: each on examples of its own.
double serial_workers(const ChainSize& chain, int threads) {
  return static_cast<double>(std::max<int64_t>(1, std::min<int64_t>(threads, chain.batch)));
}

// On the tree subtrees can be shared out, too, if there are enough of them (share_out in scan.cc).
double tree_workers(const ChainSize& chain, int threads) {
  const bool suffices = chain.batch >= threads || int64_t{8} * threads <= chain.length;
  return suffices ? threads : serial_workers(chain, threads);
}

double groups_of(const ChainSize& chain) {
  return std::max(1.0, static_cast<double>(chain.batch) / kExamplesPerGroup);
}

double tree_seconds(const ChainSize& chain, int levels, int threads, double leaf) {
  const auto length = static_cast<double>(chain.length), batch = static_cast<double>(chain.batch);
  const auto size = static_cast<double>(chain.size);
  const double blocks = length / static_cast<double>(int64_t{1} << levels);
  const double node = kNode * groups_of(chain);
  const double work =
      (length - blocks) * (batch * (product_seconds(size) + apply_seconds(size)) + 2 * node) +
      length * batch * leaf;
  const double carry = blocks * (batch * apply_seconds(size) + node);
  const double passes = levels > 0 && chain.batch < threads ? 2 * groups_of(chain) : 1;
  return work / tree_workers(chain, threads) + carry / serial_workers(chain, threads) +
         (threads > 1 ? passes * kWaking : 0);
}

template <typename Seconds>
int least(const ChainSize& chain, const Seconds& seconds) {
  int best = 0;
  double time = seconds(0) / kGain;
  for (int levels = 1; levels <= scan_levels(chain.length); ++levels)
    if (seconds(levels) < time) time = seconds(best = levels);
  return best;
}

}  // namespace

double scan_seconds(const ChainSize& chain, int levels, int threads) {
  return tree_seconds(chain, levels, threads, 0);
}

double recurrent_seconds(const ChainSize& chain, int gates, int levels, int threads) {
  const auto size = static_cast<double>(chain.size);
  if (levels > 0) return tree_seconds(chain, levels, threads, 1.5 * gates * size * size / 20e9);
  const double step = gates * size * size / 45e9 + 0.3e-9 * size;
  return static_cast<double>(chain.length) *
         (20e-9 + static_cast<double>(chain.batch) * step / serial_workers(chain, threads));
}

int worthwhile_threads(double seconds, int threads) {
  return static_cast<int>(std::min<double>(threads, 1 + seconds / (2 * kWaking)));
}

int choose_levels(const ChainSize& chain, int threads) {
  return least(chain, [&](int levels) { return scan_seconds(chain, levels, threads); });
}

int choose_recurrent_levels(const ChainSize& chain, int gates, int threads) {
  return least(chain, [&](int levels) { return recurrent_seconds(chain, gates, levels, threads); });
}

}  // namespace ringar
