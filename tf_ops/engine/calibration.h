// Choices for the machine at hand, which the ranks of a host measure themselves.
//
// One choice differs from machine to machine by more than noise (tuning.h): from which size on an
// allreduce stores its results past the caches. The ranks run allreduces of a few sizes both ways,
// in turn, each on the core that it will compute on, and then read the results, as an optimizer
// does: results that would have stayed in a cache are better there.
//
//     round 0   8 MiB plain, past | ... | 64 MiB plain, past     (warms up)
//     round 1   8 MiB past, plain | ...
//
// After each pair an allreduce tells all ranks the times of the slowest one, so all of them choose
// alike, and stop alike when their time is over. A size gains if the median over the rounds of past
// / plain says so: the two are neighbors in time, so a noisy moment hits both. The sizes are those
// of two ranks; more ranks take as much memory together. A gain at the largest size grows beyond
// it.
//
// Both ways give the same bits.
//
// Between hosts another choice depends on the network: up to which size recursive doubling, of few
// rounds and many bytes, takes less time than halving and doubling, and up to which size these take
// less than a ring, of many rounds. Where nothing is known of the network, the ranks measure that,
// too, in the same manner: allreduces two ways, in turn, of sizes that close in on the one where
// the way for longer arrays wins, until the time is over. Up to three hosts have recursive doubling
// and the ring alone (World::halving_doubling_bytes_for). On many hosts a ring takes long, however
// short the array; so it is not measured before halving and doubling have won over recursive
// doubling.
//
// Some networks give one stream of TCP a part of their rate only. So arrays that take a few
// milliseconds go by one stream to a rank and by several, in turn.

#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "engine/communicator.h"

namespace ringar {

// Ends after at most 0.7 s. Nothing is found if that was too little time. All ranks call it at the
// same place.
Status calibrate(Communicator& ranks, std::optional<size_t>* limit);

// Up to how many bytes allreduces between hosts go by recursive doubling, and up to how many by
// halving and doubling; the size of buckets of gradients, 0 where it was not measured; and whether
// several streams to a rank carry more than one.
struct WaysBetweenHosts {
  size_t recursive_doubling = 0, halving_doubling = 0, bucket = 0;
  bool has_streams = false;
};

// `use` applies them to the allreduces that follow. Ends after some 0.6 s; later between hosts far
// apart, where each way is measured once. All ranks call it at the same place, and find the same.
Status calibrate_between_hosts(Communicator& ranks,
                               const std::function<void(const WaysBetweenHosts&)>& use,
                               WaysBetweenHosts* ways);

// The least size of buckets, a power of two from 8 MiB to 64 MiB, that comes to 90% of the rate of
// the largest, if an allreduce takes `fixed` seconds and `per_byte` for each byte. The same as
// bucket_bytes of ringar/job/cost_model/choice.py.
size_t bucket_for(double fixed, double per_byte);

// The smallest of the ascending `sizes` from which on all gain, kNever if the largest does not;
// `ratios` has, per size, a round's time past the caches by the plain one. Nothing where there are
// too few rounds.
std::optional<size_t> least_that_gains(const std::vector<size_t>& sizes,
                                       const std::vector<std::vector<double>>& ratios);

}  // namespace ringar
