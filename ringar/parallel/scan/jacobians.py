"""The transposed Jacobians of layers as sparse matrices, made by index arithmetic.

For a layer from x, with n numbers per example, to y, with m, the transposed Jacobian is the n x m
matrix of dy_j/dx_i, by which dl/dy is multiplied to get dl/dx. Examples are flattened as NumPy does
it, rows first and channels last. No automatic differentiation is needed: the shapes determine the
pattern of the entries, and their values are weights, ones, or functions of the activations.

Two kinds of matrices (Wang, Bai and Pekhimenko, "BPPSA: Scaling back-propagation by parallel scan
algorithm", MLSys 2020, arXiv:1907.10134):

- Those of `dense`, `Convolution` and `identity` are the same for all examples of a batch: n x m.
- Those of `diagonal` (ReLU, tanh, ...) and `MaxPooling` differ between examples. They are returned
  for a batch of b at once, as one block-diagonal matrix of (b n) x (b m).

Most entries are zero for all weights and activations: the guaranteed zeros. `entries` counts the
others. The pattern of a convolution is computed once per layer and shape, and a step only fills in
the values. The zeros of a pruned kernel can be left out, too.

All matrices are `scipy.sparse.csr_array` with sorted rows, of the dtype of the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ringar.parallel.scan.sparse import csr, repeat, scipy_sparse

if TYPE_CHECKING:
    from scipy.sparse import csr_array


#: A kernel of which more than this share is zero counts as pruned.
PRUNED = 0.5

Derivative = Callable[[np.ndarray], np.ndarray]

#: dy/dx of the activations, from y. At 0, that of ReLU is 0, as in TensorFlow.
FROM_OUTPUT: dict[str, Derivative] = {
    "relu": lambda y: (y > 0).astype(y.dtype),
    "tanh": lambda y: 1 - y * y,
    "sigmoid": lambda y: y * (1 - y),
}


def identity(size: int, dtype: str | type = np.float32) -> csr_array:
    """Return the Jacobian of `Flatten`, `Reshape` and a linear activation.

    Returns:
        The identity, size x size.
    """
    steps = np.arange(size + 1)
    return csr(np.ones(size, dtype), steps[:-1], steps, (size, size))


def diagonal(derivative: np.ndarray) -> csr_array:
    """Return the Jacobian of an elementwise function.

    Args:
        derivative: dy/dx, of shape (batch, ...).

    Returns:
        The diagonal matrix for the whole batch; derivatives that are zero are left out.
    """
    flat = np.ascontiguousarray(derivative).reshape(-1)
    places = np.flatnonzero(flat)
    indptr = np.zeros(flat.size + 1, np.int64)
    np.cumsum(flat != 0, out=indptr[1:])
    return csr(flat[places], places, indptr, (flat.size, flat.size))


def activation(name: str, outputs: np.ndarray) -> csr_array:
    """Return the Jacobian of ReLU, tanh or the sigmoid.

    Args:
        name: one of `FROM_OUTPUT`.
        outputs: the outputs of the activation, of shape (batch, ...).

    Returns:
        The diagonal matrix for the whole batch.
    """
    return diagonal(FROM_OUTPUT[name](outputs))


def dense(kernel: np.ndarray, copies: int = 1, *, prune: bool | None = None) -> csr_array:
    """Return the Jacobian of a `Dense` layer without its activation: the kernel.

    Args:
        kernel: of shape (inputs, units).
        copies: the number of times that the kernel is applied to an example: the product of the
            inner dimensions of inputs of rank 3 and more, (batch, ..., inputs); 1 for rank 2.
        prune: leave zero weights out; by default if more than half of them are zero.

    Returns:
        A matrix of (copies inputs) x (copies units).
    """
    rows, columns = kernel.shape
    if _is_pruned(kernel, prune):
        return repeat(scipy_sparse().csr_array(kernel), copies)
    indices = np.tile(np.arange(columns), rows)
    indptr = np.arange(rows + 1) * columns
    # The values are copied: a scan may outlive the step in which the weights change.
    return repeat(csr(kernel.reshape(-1).copy(), indices, indptr, kernel.shape), copies)


class Convolution:
    """Make the Jacobian of a `Conv2D` layer, channels last, without its activation.

    Args:
        input_shape: of an example: (height, width, channels).
        kernel_shape: (height, width, channels / groups, filters).
        strides: for height and width.
        padding: "same" or "valid".
        dilation: for height and width.
        groups: of channels, each of which has filters of its own.

    Attributes:
        shape: the shape of the matrix: the sizes of an example's input and output.
        entries: the number of entries that are not guaranteed zeros.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        kernel_shape: Sequence[int],
        strides: Sequence[int] = (1, 1),
        padding: str = "valid",
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
    ) -> None:
        self._input, self._kernel, self._groups = tuple(input_shape), tuple(kernel_shape), groups
        self._taps = [
            taps(self._input[axis], self._kernel[axis], strides[axis], padding, dilation[axis])
            for axis in (0, 1)
        ]
        outputs = math.prod(len(axis) for axis in self._taps) * self._kernel[3]
        self.shape = (math.prod(self._input), outputs)
        weights = math.prod(self._kernel[2:])
        self.entries = math.prod(int((axis >= 0).sum()) for axis in self._taps) * weights
        self._all: tuple[csr_array, np.ndarray] | None = None
        self._pruned: tuple[csr_array, np.ndarray, np.ndarray] | None = None

    def transposed(self, kernel: np.ndarray, *, prune: bool | None = None) -> csr_array:
        """Return the matrix with the values of a kernel.

        The first call computes the pattern of the entries. With a pruned kernel, a call computes it
        again if other weights are zero than before.

        Args:
            kernel: of shape `kernel_shape`.
            prune: leave zero weights out; by default if more than half of them are zero.

        Raises:
            ValueError: the kernel has another shape.
        """
        if kernel.shape != self._kernel:
            raise ValueError(f"`kernel` must be of shape {self._kernel}. Received: {kernel.shape}")
        if _is_pruned(kernel, prune):
            nonzero = kernel != 0
            if self._pruned is None or not np.array_equal(self._pruned[2], nonzero):
                self._pruned = (*self._places(nonzero), nonzero)
            pattern, source = self._pruned[:2]
        else:
            if self._all is None:
                self._all = self._places(np.ones(self._kernel, bool))
            pattern, source = self._all
        data = kernel.reshape(-1)[source]
        return csr(data, pattern.indices, pattern.indptr, self.shape)

    def _places(self, mask: np.ndarray) -> tuple[csr_array, np.ndarray]:
        """Return the pattern of the entries of the weights in a mask, and each entry's weight."""
        vertical, horizontal = self._taps
        _, width, channels = self._input
        per_group, filters = self._kernel[2:]
        number = np.arange(mask.size, dtype=np.int32).reshape(self._kernel)
        # Narrow indices save megabytes for each million of entries.
        width_of_index = np.int32 if max(self.shape) < 2**31 else np.int64
        rows, columns, sources = [], [], []
        for ky, kx in np.ndindex(*self._kernel[:2]):
            inner, outer = np.nonzero(mask[ky, kx])
            group = outer // (filters // self._groups)
            y, x = np.flatnonzero(vertical[:, ky] >= 0), np.flatnonzero(horizontal[:, kx] >= 0)
            start = vertical[y, ky][:, None] * width + horizontal[x, kx]
            end = y[:, None] * len(horizontal) + x
            first = group * per_group + inner
            rows.append((start.reshape(-1, 1) * channels + first).astype(width_of_index).ravel())
            columns.append((end.reshape(-1, 1) * filters + outer).astype(width_of_index).ravel())
            sources.append(np.tile(number[ky, kx, inner, outer], start.size))
        return _sorted(
            np.concatenate(rows), np.concatenate(columns), np.concatenate(sources), self.shape
        )


class MaxPooling:
    """Make the Jacobian of a `MaxPooling2D` layer, channels last.

    The gradient of an output goes to the maximum of its window; of equal maxima, to the first one,
    rows first, as in TensorFlow on CPUs.

    Args:
        input_shape: of an example: (height, width, channels).
        pool_size: for height and width.
        strides: for height and width.
        padding: "same" or "valid".

    Attributes:
        shape: the shape of an example's matrix: the sizes of its input and output.
        entries: the number of entries that are not guaranteed zeros: one for each number in each
            window, although in each step only one per window is not zero.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        pool_size: Sequence[int] = (2, 2),
        strides: Sequence[int] = (2, 2),
        padding: str = "valid",
    ) -> None:
        height, width, self._channels = input_shape
        vertical = taps(height, pool_size[0], strides[0], padding)
        horizontal = taps(width, pool_size[1], strides[1], padding)
        inside = (vertical >= 0)[:, None, :, None] & (horizontal >= 0)[None, :, None, :]
        places = vertical[:, None, :, None] * width + horizontal[None, :, None, :]
        self._windows = np.where(inside, places, -1).reshape(-1, math.prod(pool_size))
        self._pixels = height * width
        self.shape = (self._pixels * self._channels, len(self._windows) * self._channels)
        self.entries = int(inside.sum()) * self._channels

    def transposed(self, inputs: np.ndarray) -> csr_array:
        """Return the block-diagonal matrix for a batch, (batch, height, width, channels)."""
        batch = len(inputs)
        pixels = inputs.reshape(batch, self._pixels, self._channels)
        best, source = pixels[:, self._windows[:, 0]], self._windows[:, 0, None]
        best = np.where(source >= 0, best, -np.inf)
        source = np.broadcast_to(source, best.shape)
        for place in self._windows.T[1:]:
            value = np.where(place[:, None] >= 0, pixels[:, place], -np.inf)
            better = (value > best) | ((source < 0) & (place[:, None] >= 0))
            best = np.where(better, value, best)
            source = np.where(better, place[:, None], source)
        example = np.arange(batch)[:, None, None]
        rows = (example * self._pixels + source) * self._channels + np.arange(self._channels)
        size = (batch * self.shape[0], batch * self.shape[1])
        columns = np.arange(size[1])
        pattern, _ = _sorted(rows.ravel(), columns, columns, size)
        return csr(np.ones(len(columns), inputs.dtype), pattern.indices, pattern.indptr, size)


def taps(
    length: int, window: int, stride: int, padding: str, dilation: int = 1
) -> np.ndarray:  # fmt: skip
    """Return the input index that each element of a window reads along one axis, as in TensorFlow.

    Returns:
        An array (outputs, window) of indices into the input; -1 where a window reads padding.
    """
    reach = (window - 1) * dilation + 1
    if padding == "same":
        outputs = -(-length // stride)
        before = max((outputs - 1) * stride + reach - length, 0) // 2
    else:
        outputs, before = (length - reach) // stride + 1, 0
    places = np.arange(outputs)[:, None] * stride + np.arange(window) * dilation - before
    return np.where((places >= 0) & (places < length), places, -1)


def _is_pruned(kernel: np.ndarray, prune: bool | None) -> bool:
    if prune is not None:
        return prune
    return bool(np.count_nonzero(kernel) < (1 - PRUNED) * kernel.size)


def _sorted(
    rows: np.ndarray, columns: np.ndarray, data: np.ndarray, shape: tuple[int, int]
) -> tuple[csr_array, np.ndarray]:
    """Return the CSR matrix with these entries, and `data` in its order."""
    matrix = scipy_sparse().coo_array((data, (rows, columns)), shape=shape).tocsr()
    matrix.sort_indices()
    return matrix, matrix.data
