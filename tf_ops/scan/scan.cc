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
// a vector (2 H^2) take ceil(n / p) + O(log p) steps, where the serial chain takes n steps of 2
// H^2.
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
// The examples of a batch are cut into groups, whose slots remain in the cache from one level to
// the next, since the tree is walked depth first. Threads take groups; where there are too few,
// they take the subtrees of a group, and one thread does the top of the tree, of at most 8 nodes
// per thread.

#include "scan/scan.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "scan/workers.h"

namespace ringar {
namespace {

// Memory that is not touched is not there. Huge pages: a fault per 4 KiB would cost as much as a
// tenth of the arithmetic.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t elements) : elements_(elements) {
    if (elements == 0) return;
    constexpr size_t kHugePage = size_t{1} << 21;
    const size_t bytes = static_cast<size_t>(elements) * sizeof(T);
    const size_t alignment = bytes < kHugePage ? 64 : kHugePage;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<T*>(std::aligned_alloc(alignment, rounded)));
    if (!data_) throw std::bad_alloc();
    if (alignment == kHugePage) madvise(data_.get(), rounded, MADV_HUGEPAGE);
  }

  T* at(int64_t index) const { return data_.get() + index; }

  void grow(int64_t elements) {
    if (elements <= elements_) return;
    *this = Buffer();  // before the new one is there
    *this = Buffer(elements);
  }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t elements_ = 0;
};

template <typename T>
Rows<const T> read(Rows<T> rows) {
  return {rows.data, rows.stride};
}

// A map for each example of a group: matrices in a slab, addends, if there are any, in rows.
template <typename T>
struct Maps {
  const T* matrices = nullptr;
  Rows<const T> addends;
};
template <typename T>
struct Target {
  T* matrices;
  Rows<T> addends;

  Maps<T> written() const { return {matrices, read(addends)}; }
};

// The tree over the examples [first, last). With a vector, position 0 is v_0 and position p the
// chain's k = p; without one, position p is k = p + 1.
template <typename T>
class Tree {
 public:
  // The memory for the slots may have served another group.
  Tree(const Chain<T>& chain, int64_t first, int64_t last, bool has_vector, Buffer<T>& slots)
      : chain_(chain),
        kernels_(matrix_kernels<T>()),
        apply_(chain.adjoint ? kernels_.apply_to_row : kernels_.apply_to_column),
        first_(first),
        count_(last - first),
        slab_(count_ * chain.size * chain.size),
        rows_(chain.has_addends() ? count_ * chain.size : 0),
        has_vector_(has_vector),
        slots_(slots) {}

  int64_t positions() const { return chain_.length + (has_vector_ ? 1 : 0); }
  bool is_full(int64_t lo, int level) const { return lo + (int64_t{1} << level) <= positions(); }
  void make_slots() { slots_.grow(positions() / 2 * (slab_ + rows_)); }
  // What one thread needs to walk up and down: a place for a right child of each level, and one for
  // a left child that is a leaf.
  Buffer<T> scratch(int levels) const { return Buffer<T>((levels + 2) * (slab_ + rows_)); }

  // Makes the node of `level` that begins at `lo`, and is full, and keeps it. Nodes of level `from`
  // have been made before, if it is not 0.
  void keep(int64_t lo, int level, int from, const Buffer<T>& scratch) {
    if (level > from) up(lo, level, from, slot(last_of(lo, level)), scratch);
  }

  // Keeps the left children within a node, which need not be full; more of it is not used where
  // nothing follows.
  void keep_left_children(int64_t lo, int level, int from, const Buffer<T>& scratch) {
    while (level-- > from) {
      const int64_t mid = lo + (int64_t{1} << level);
      if (mid >= positions()) continue;
      keep(lo, level, from, scratch);
      lo = mid;
    }
  }

  // From v_{lo-1} those that come into the nodes of level `to` within the node.
  void down(int64_t lo, int level, int to, const Buffer<T>& scratch) {
    while (level-- > to) {
      const int64_t mid = lo + (int64_t{1} << level);
      if (mid >= positions()) continue;
      if (lo > 0) carry(lo, level, scratch);
      down(lo, level, to, scratch);
      lo = mid;
    }
  }

  // What comes out of a node: v of its last position, from v_{lo-1}.
  void carry(int64_t lo, int level, const Buffer<T>& scratch) {
    apply(lo - 1, find(lo, level, left_leaf(scratch)), last_of(lo, level));
  }

  // A node that is kept, or a leaf.
  Maps<T> find(int64_t lo, int level, T* scratch) const {
    if (level > 0) return slot(last_of(lo, level)).written();
    const int64_t k = has_vector_ ? lo : lo + 1;
    return {chain_.matrices(k, first_, first_ + count_, scratch), of_group(chain_.addends(k))};
  }

  // Left before right.
  void combine(const Maps<T>& left, const Maps<T>& right, const Target<T>& to) const {
    const T* factors[] = {right.matrices, left.matrices};
    if (chain_.adjoint) std::swap(factors[0], factors[1]);
    kernels_.multiply(count_, chain_.size, factors[0], factors[1], to.matrices);
    if (rows_ == 0) return;
    if (left.addends.data)
      return apply_(count_, chain_.size, left.addends, right.matrices, right.addends, to.addends);
    copy_rows(right.addends, to.addends);
  }

  Maps<T> copy(const Maps<T>& from, const Target<T>& to) const {
    memcpy(to.matrices, from.matrices, static_cast<size_t>(slab_) * sizeof(T));
    if (rows_) copy_rows(from.addends, to.addends);
    return to.written();
  }

  Target<T> place(const Buffer<T>& buffer, int64_t index) const {
    T* matrices = buffer.at(index * (slab_ + rows_));
    return {matrices, {rows_ ? matrices + slab_ : nullptr, chain_.size}};
  }

 private:
  // Row by row; zeros where nothing is added.
  void copy_rows(Rows<const T> from, Rows<T> to) const {
    const size_t bytes = static_cast<size_t>(chain_.size) * sizeof(T);
    for (int64_t e = 0; e < count_; ++e) {
      T* row = to.data + e * to.stride;
      from.data ? memcpy(row, from.data + e * from.stride, bytes) : memset(row, 0, bytes);
    }
  }

  static int64_t last_of(int64_t lo, int level) { return lo + (int64_t{1} << level) - 1; }

  Maps<T> up(int64_t lo, int level, int from, const Target<T>& to, const Buffer<T>& scratch) {
    if (level == from && from > 0) return find(lo, level, nullptr);
    if (level == 0) return find(lo, 0, to.matrices);
    const int64_t mid = lo + (int64_t{1} << (level - 1));
    const Target<T> left_to = level > 1 ? slot(mid - 1) : place(scratch, 0);
    const bool is_vector = lo == 0 && has_vector_;
    Maps<T> left;
    if (!is_vector || level > 1) left = up(lo, level - 1, from, left_to, scratch);
    const Maps<T> right = up(mid, level - 1, from, place(scratch, level), scratch);
    if (is_vector) {
      apply(mid - 1, right, last_of(lo, level));
      return {};
    }
    // A subtree's root is kept where its parent goes, if it is the right child.
    const bool in_place = right.matrices == to.matrices;
    const Target<T> made = in_place ? place(scratch, level) : to;
    combine(left, right, made);
    return in_place ? copy(made.written(), to) : to.written();
  }

  // v_to = the maps, applied to v_from.
  void apply(int64_t from, const Maps<T>& maps, int64_t to) {
    apply_(count_, chain_.size, of_group(read(chain_.results(from))), maps.matrices, maps.addends,
           of_group(chain_.results(to)));
  }

  template <typename U>
  Rows<U> of_group(Rows<U> rows) const {
    if (rows.data) rows.data += first_ * rows.stride;
    return rows;
  }
  Target<T> slot(int64_t position) const { return place(slots_, position / 2); }
  T* left_leaf(const Buffer<T>& scratch) const { return place(scratch, 0).matrices; }

  const Chain<T>& chain_;
  const MatrixKernels<T>& kernels_;
  const typename MatrixKernels<T>::Apply apply_;
  const int64_t first_, count_, slab_, rows_;
  const bool has_vector_;
  Buffer<T>& slots_;
};

// How the work is shared out: the batch in groups of examples, and, where there are fewer groups
// than threads, the tree of a group in subtrees of so many levels (otherwise 0).
struct Shares {
  int64_t group;
  int subtree;
};

// A slab fits into the nearest cache; so the nodes that a walk comes back to soon are still in the
// next one, and those that it comes back to late are read as a stream, however long the chain. The
// limit to all slots is for the sake of memory alone. Matrices of up to three columns are worked on
// a vector of examples at a time.
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
  const int64_t tasks = std::min<int64_t>(parts, 4 * threads);
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
    for_subtrees(tree, subtree, threads, [&](int64_t lo, const Buffer<T>& own) {
      if (lo + (int64_t{1} << subtree) < tree.positions())
        tree.keep(lo, subtree, 0, own);
      else
        tree.keep_left_children(lo, subtree, 0, own);
    });
  for (int64_t lo = 0; lo < last; lo += block) tree.keep(lo, levels, subtree, scratch);
  tree.keep_left_children(last, levels, subtree, scratch);
  for (int64_t lo = block; lo < last; lo += block) tree.carry(lo, levels, scratch);
  for (int64_t lo = 0; lo <= last; lo += block) tree.down(lo, levels, subtree, scratch);
  if (subtree > 0)
    for_subtrees(tree, subtree, threads,
                 [&](int64_t lo, const Buffer<T>& own) { tree.down(lo, subtree, 0, own); });
  // The exclusive scan ends one position before the end.
  tree.carry(tree.positions() - 1, 0, scratch);
}

// The map of the whole tree, to `result`.
template <typename T>
void reduce_tree(Tree<T>& tree, int levels, int subtree, int threads, const Target<T>& result) {
  const Buffer<T> scratch = tree.scratch(levels), aside = tree.scratch(0);
  if (levels > 0) tree.make_slots();
  if (subtree > 0)
    for_subtrees(tree, subtree, threads, [&](int64_t lo, const Buffer<T>& own) {
      if (tree.is_full(lo, subtree)) tree.keep(lo, subtree, 0, own);
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
      all = next.written();
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
  if (chain.length == 0 || chain.batch == 0) return;
  levels = std::min(levels, scan_levels(chain.length));
  const Shares shares = share_out(chain, levels, threads);
  for_groups(chain, shares, threads, true, [&](Tree<T>& tree, int64_t, int own) {
    scan_tree(tree, levels, shares.subtree, own);
  });
}

template <typename T>
void reduce_chain(const Chain<T>& chain, int levels, int threads, T* product, T* addend) {
  const int64_t matrix = chain.size * chain.size;
  if (chain.length == 0) {
    std::fill_n(product, chain.batch * matrix, T(0));
    for (int64_t i = 0; i < chain.batch * chain.size; ++i)
      product[i * chain.size + i % chain.size] = 1;
    return;
  }
  levels = std::min(levels, scan_levels(chain.length));
  const Shares shares = share_out(chain, levels, threads);
  for_groups(chain, shares, threads, false, [&](Tree<T>& tree, int64_t first, int own) {
    Rows<T> addends;
    if (chain.has_addends()) addends = {addend + first * chain.size, chain.size};
    reduce_tree(tree, levels, shares.subtree, own, {product + first * matrix, addends});
  });
}

template void scan(const Chain<float>&, int, int);
template void scan(const Chain<double>&, int, int);
template void reduce_chain(const Chain<float>&, int, int, float*, float*);
template void reduce_chain(const Chain<double>&, int, int, double*, double*);

}  // namespace ringar
