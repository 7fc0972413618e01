// The same products, once per instruction set: see sparse_kernels.inc.

#pragma once

#include "sparse/sparse.h"

namespace ringar {

template <typename T>
struct SparseLevels {
  static const SparseKernels<T> baseline, avx2, avx512;
};

template <>
const SparseKernels<float> SparseLevels<float>::baseline;
template <>
const SparseKernels<float> SparseLevels<float>::avx2;
template <>
const SparseKernels<float> SparseLevels<float>::avx512;
template <>
const SparseKernels<double> SparseLevels<double>::baseline;
template <>
const SparseKernels<double> SparseLevels<double>::avx2;
template <>
const SparseKernels<double> SparseLevels<double>::avx512;

}  // namespace ringar
