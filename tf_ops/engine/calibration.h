// What is best on the machine at hand, measured by the ranks of a host on themselves.
//
// One choice differs from machine to machine by more than noise (tuning.h): from which size on an
// allreduce stores its results past the caches. The ranks run allreduces of a few sizes both ways,
// in turn, each on the core that it will compute on, and then read the results, as an optimizer
// does: results that would have stayed in a cache are better there.
//
//     round 0   4 MiB plain, past | 8 MiB plain, past | 16 MiB plain, past     (warms up)
//     round 1   4 MiB past, plain | ...
//
// After each pair an allreduce tells all ranks the times of the slowest one, so all of them choose
// alike, and stop alike when their time is over. A size gains if the median over the rounds of
// past / plain says so: the two are neighbors in time, so a noisy moment hits both. The sizes are
// those of two ranks; more ranks take as much memory together. What gains at the largest size gains
// more beyond.
//
// Both ways give the same bits.

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/communicator.h"

namespace ringar {

// Ends after at most 0.3 s. Nothing is found if that was too little time. All ranks call it at the
// same place.
Status calibrate(Communicator& ranks, std::optional<size_t>* found);

// The smallest of the ascending `sizes` from which on all gain, kNever if the largest does not;
// `ratios` has, per size, a round's time past the caches by the plain one. Nothing where there are
// too few rounds.
std::optional<size_t> least_that_gains(const std::vector<size_t>& sizes,
                                       const std::vector<std::vector<double>>& ratios);

}  // namespace ringar
