// How many levels of the tree are worth going up: a model of the time that a scan takes.

#pragma once

#include <cstdint>

namespace ringar {

struct ChainSize {
  int64_t length, batch, size;
};

// Seconds that a scan with so many levels takes on so many threads, by the model in choice.cc;
// levels = 0 is the serial chain.
double scan_seconds(const ChainSize& chain, int levels, int threads);

// The same for a recurrent layer of `gates` gates (SimpleRNN 1, GRU 3, LSTM 4), whose Jacobians are
// made on the way, and whose serial chain multiplies with the kernel that all examples share.
double recurrent_seconds(const ChainSize& chain, int gates, int levels, int threads);

// How many of the threads are worth waking for work that takes one of them so long.
int worthwhile_threads(double seconds, int threads);

// The levels with the least time; 0, the serial chain, unless a tree is clearly faster.
int choose_levels(const ChainSize& chain, int threads);
int choose_recurrent_levels(const ChainSize& chain, int gates, int threads);

}  // namespace ringar
