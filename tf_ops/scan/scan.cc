// Back-propagation as a parallel scan (Wang, Bai and Pekhimenko, "BPPSA", MLSys 2020,
// arXiv:1907.10134; the scan is Blelloch's, 1990).
//
// The array [v_0, M_1, …, M_n] has n + 1 positions: the vector, then the matrices in the order in
// which the vector meets them, with A ⋄ B = B A. Its exclusive scan has at position p what the
// positions before it make of the vector: v_{p-1}.
//
//   Up-sweep. A node of level d covers 2^d positions. Level by level each right child becomes the
//   node of both, a[r] <- a[l] ⋄ a[r]: a product of matrices; at the left edge, where a[l] is a
//   vector, of a matrix and a vector.
//   Down-sweep. From the top down, t = a[l]; a[l] = a[r]; a[r] = a[r] ⋄ t, the operands swapped,
//   since the operator does not commute: what comes into a node goes on to its left child, and with
//   t, which is the left child's product, applied to it, to its right child. Only vectors come in,
//   so these are products of a matrix and a vector.
//
// With p workers, n products of matrices (2 H^3 operations each, H the size) and n of a matrix and
// a vector (2 H^2) take ceil(n / p) + O(log p) steps, where the serial chain takes n steps, each of
// a matrix and a vector.
//
// The array is never written to. What comes into a node that begins at position `lo` is v_{lo-1}, a
// result of the scan, so the down-sweep keeps nothing beside the results:
//
//   v_{mid-1} = a[left child, lo … mid-1] applied to v_{lo-1}
//
// and at the left edge the up-sweep has computed v_{mid-1} already. Of the tree only left children
// are used, all of which are full (the right sibling is not empty), so nothing is ever computed at
// the ragged right edge: a length that is no power of two needs no padding. A node is kept at its
// last position, which is odd: (n + 1) / 2 slots of a matrix for each example.
//
// `levels` = L makes the paper's hybrid: nodes of 2^L positions, the blocks, are made as above; a
// serial pass carries the vector over the blocks; each block sweeps down. L = 0 is the serial
// chain, a block as wide as the array the scan.
//
// With addends, v_k = M_k v_{k-1} + a_k, a node is an affine map (Q, g), and left before right make
// (Q_r Q_l, Q_r g_l + g_r).
//
// The examples of a batch are cut into groups, and the tree of a group is walked depth first, so
// that what a node is made of is still near. Threads take groups; where there are too few, they
// take the subtrees of a group, about 8 each, and one thread does what is above them.

#include "scan/scan.h"

#include <algorithm>
#include <utility>

#include "scan/tree.h"
#include "scan/workers.h"

namespace ringar {
namespace {

// How the work is shared out: the batch in groups of examples, and, where there are fewer groups
// than threads, the tree of a group in subtrees of so many levels (otherwise 0).
struct Shares {
  int64_t group;
  int subtree;
};

// A slab is small enough for a product's three to be in the second cache, and with them the nodes
// that the walk comes back to soon; those that it comes back to late are read as a stream, however
// long the chain. The limit to a thread's slots is for the sake of memory alone. Matrices of up to
// three columns are worked on a vector of examples at a time.
template <typename T>
int64_t group_size(const Chain<T>& chain, int levels) {
  constexpr int64_t kSlabBytes = int64_t{32} << 10, kSlotBytes = int64_t{512} << 20;
  const int64_t matrix = chain.size * chain.size * static_cast<int64_t>(sizeof(T));
  int64_t most = kSlabBytes / matrix;
  if (levels > 0) most = std::min(most, kSlotBytes / (matrix * (chain.length / 2 + 1)));
  return std::max<int64_t>(most, chain.size <= 3 ? 16 : 1);
}

template <typename T>
Shares share_out(const Chain<T>& chain, int levels, int threads) {
  constexpr int kSubtreesPerThread = 8;
  const int64_t even = (chain.batch + threads - 1) / threads;
  const int64_t group = std::min(group_size(chain, levels), std::max<int64_t>(even, 1));
  if ((chain.batch + group - 1) / group >= threads) return {group, 0};
  int subtree = 0;
  while (subtree < levels && (int64_t{kSubtreesPerThread} * threads << subtree) <= chain.length)
    ++subtree;
  return {group, subtree};
}

// Calls work(tree, first example, threads) for each group, at once where there are enough of them
// for all threads. What a thread does one after the other shares memory.
template <typename T, typename Work>
void for_groups(const Chain<T>& chain, const Shares& shares, int threads, bool has_vector,
                const Work& work) {
  const int64_t groups = (chain.batch + shares.group - 1) / shares.group;
  const int64_t tasks = shares.subtree == 0 ? std::min<int64_t>(threads, groups) : 1;
  parallel_for(threads, tasks, [&](int64_t task) {
    Buffer<T> slots;
    for (int64_t i = task; i < groups; i += tasks) {
      const int64_t first = i * shares.group, last = std::min(first + shares.group, chain.batch);
      Tree<T> tree(chain, first, last, has_vector, slots);
      work(tree, first, shares.subtree == 0 ? 1 : threads);
    }
  });
}

int64_t parts_of(int64_t positions, int level) {
  return (positions + (int64_t{1} << level) - 1) >> level;
}

// Calls work(lo, scratch) for the subtrees of a tree, a stretch of them per task.
template <typename T, typename Work>
void for_subtrees(const Tree<T>& tree, int subtree, int threads, const Work& work) {
  const int64_t parts = parts_of(tree.positions(), subtree);
  const int64_t tasks = std::min<int64_t>(parts, int64_t{4} * threads);
  parallel_for(threads, tasks, [&](int64_t i) {
    const Buffer<T> scratch = tree.scratch(subtree);
    for (int64_t part = i * parts / tasks; part < (i + 1) * parts / tasks; ++part)
      work(part << subtree, scratch);
  });
}

template <typename T>
void scan_tree(Tree<T>& tree, int levels, int subtree, int threads) {
  const Buffer<T> scratch = tree.scratch(levels);
  const int64_t last = (parts_of(tree.positions(), levels) - 1) << levels,
                block = int64_t{1} << levels;
  if (levels > 0) tree.make_slots();
  if (subtree > 0)
    for_subtrees(tree, subtree, threads, [&](int64_t lo, const Buffer<T>& buffer) {
      if (lo + (int64_t{1} << subtree) < tree.positions())
        tree.keep(lo, subtree, 0, buffer);
      else
        tree.keep_left_children(lo, subtree, 0, buffer);
    });
  for (int64_t lo = 0; lo < last; lo += block) tree.keep(lo, levels, subtree, scratch);
  tree.keep_left_children(last, levels, subtree, scratch);
  for (int64_t lo = block; lo < last; lo += block) tree.carry(lo, levels, scratch);
  for (int64_t lo = 0; lo <= last; lo += block) tree.down(lo, levels, subtree, scratch);
  if (subtree > 0)
    for_subtrees(tree, subtree, threads,
                 [&](int64_t lo, const Buffer<T>& buffer) { tree.down(lo, subtree, 0, buffer); });
  // The exclusive scan ends one position before the end.
  tree.carry(tree.positions() - 1, 0, scratch);
}

// The map of the whole tree, to `result`.
template <typename T>
void reduce_tree(Tree<T>& tree, int levels, int subtree, int threads, const Target<T>& result) {
  const Buffer<T> scratch = tree.scratch(levels), aside = tree.scratch(0);
  if (levels > 0) tree.make_slots();
  if (subtree > 0)
    for_subtrees(tree, subtree, threads, [&](int64_t lo, const Buffer<T>& buffer) {
      if (tree.is_full(lo, subtree)) tree.keep(lo, subtree, 0, buffer);
    });
  Target<T> to = tree.place(aside, 0), next = tree.place(aside, 1);
  Maps<T> all;
  int level = levels;
  for (int64_t lo = 0; lo < tree.positions(); lo += int64_t{1} << level) {
    while (!tree.is_full(lo, level)) --level;
    tree.keep(lo, level, level >= subtree ? subtree : 0, scratch);
    const Maps<T> block = tree.find(lo, level, scratch.at(0));
    if (lo == 0) {
      all = tree.copy(block, to);
    } else {
      tree.combine(all, block, next);
      all = next.maps();
      std::swap(to, next);
    }
  }
  tree.copy(all, result);
}

}  // namespace

int scan_levels(int64_t length) {
  int levels = 0;
  while ((int64_t{1} << levels) < length + 1) ++levels;
  return levels;
}

template <typename T>
void scan(const Chain<T>& chain, int levels, int threads) {
  if (chain.length == 0 || chain.batch == 0 || chain.size == 0) return;
  levels = std::min(levels, scan_levels(chain.length));
  const Shares shares = share_out(chain, levels, threads);
  for_groups(chain, shares, threads, true, [&](Tree<T>& tree, int64_t, int workers) {
    scan_tree(tree, levels, shares.subtree, workers);
  });
}

template <typename T>
void reduce_chain(const Chain<T>& chain, int levels, int threads, T* product, T* addend) {
  const int64_t matrix = chain.size * chain.size;
  if (chain.batch == 0 || matrix == 0) return;
  if (chain.length == 0) {
    std::fill_n(product, chain.batch * matrix, T(0));
    for (int64_t i = 0; i < chain.batch * chain.size; ++i)
      product[i * chain.size + i % chain.size] = 1;
    return;
  }
  levels = std::min(levels, scan_levels(chain.length));
  const Shares shares = share_out(chain, levels, threads);
  for_groups(chain, shares, threads, false, [&](Tree<T>& tree, int64_t first, int workers) {
    Rows<T> addends;
    if (chain.has_addends()) addends = {addend + first * chain.size, chain.size};
    reduce_tree(tree, levels, shares.subtree, workers, {product + first * matrix, addends});
  });
}

template void scan(const Chain<float>&, int, int);
template void scan(const Chain<double>&, int, int);
template void reduce_chain(const Chain<float>&, int, int, float*, float*);
template void reduce_chain(const Chain<double>&, int, int, double*, double*);

}  // namespace ringar
