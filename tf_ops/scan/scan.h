// The exclusive scan of a chain of matrices that ends in a vector (scan.cc has the essay).

#pragma once

#include "scan/chain.h"

namespace ringar {

// The levels of the whole tree: no scan goes up further.
int scan_levels(int64_t length);

// Writes chain.results(k), k = 1 … length, from chain.results(0). `levels` of the tree go up before
// a serial pass over what is left: 0 is the serial chain, scan_levels(length) or more the whole
// scan. `threads` of the process work on it.
template <typename T>
void scan(const Chain<T>& chain, int levels, int threads);

// The whole chain as one map: `product` (batch, size, size), that of the matrices in the order of
// the chain (M_n … M_1, or J_1 … J_n in an adjoint one), and `addend` (batch, size), what comes out
// where 0 goes in; not written where the chain has no addends. chain.results is not used.
template <typename T>
void reduce_chain(const Chain<T>& chain, int levels, int threads, T* product, T* addend);

}  // namespace ringar
