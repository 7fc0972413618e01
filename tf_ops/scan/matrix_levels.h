// The same products, once per instruction set: see matrix_kernels.inc.

#pragma once

#include "scan/matrix.h"

namespace ringar {

template <typename T>
struct MatrixLevels {
  static const MatrixKernels<T> baseline, avx2, avx512;
};

template <>
const MatrixKernels<float> MatrixLevels<float>::baseline;
template <>
const MatrixKernels<float> MatrixLevels<float>::avx2;
template <>
const MatrixKernels<float> MatrixLevels<float>::avx512;
template <>
const MatrixKernels<double> MatrixLevels<double>::baseline;
template <>
const MatrixKernels<double> MatrixLevels<double>::avx2;
template <>
const MatrixKernels<double> MatrixLevels<double>::avx512;

}  // namespace ringar
