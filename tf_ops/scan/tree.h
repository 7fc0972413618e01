// The tree of a scan over a group of examples: what its nodes are, where they are kept, how they
// are made and applied. scan.cc says what for.

#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "scan/chain.h"

namespace ringar {

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

  Maps<T> maps() const { return {matrices, read(addends)}; }
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
    if (level > 0) return slot(last_of(lo, level)).maps();
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
    return to.maps();
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
    const Target<T> target = in_place ? place(scratch, level) : to;
    combine(left, right, target);
    return in_place ? copy(target.maps(), to) : to.maps();
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

}  // namespace ringar
