"""Settings of PowerSGD: which gradients travel as two thin matrices, and their bytes.

A gradient seen as a matrix M [rows, columns] is often close to a matrix of low rank. Two factors
with `r` columns each travel instead of M, and each rank adds their error to its next gradient.
A step, on every rank:

    M  = gradient + error              error: what earlier steps did not send, 0 at first
    P  = mean over the ranks of M Q    [rows, r]     first allreduce; Q is that of the step before
    P^ = an orthonormal basis of P     the same on all ranks, since P is
    Q  = M^T P^                        [columns, r]  this rank's own
    error = M - P^ Q^T                 what this rank did not send
    Q  = mean over the ranks of Q                    second allreduce
    result = P^ Q^T                    the mean of the M, projected on P^

M Q and M^T P^ are one round of a power iteration. The warm start makes one round enough: Q comes
from the step before, whose gradient was similar, so that the rounds of many steps add up to a good
basis. The error feedback keeps training right: each component of the gradient is applied in the
end, some steps late. Without it the components outside the basis are never applied.

Bytes per rank: those of an allreduce of r (rows + columns) elements instead of rows x columns, or
1/128 for a kernel of 512 x 512 and r = 2. Costs: four products of M's size times r; memory for the
errors as large as the gradients; two allreduces, one after the other, after the whole backward
pass, so that nothing overlaps with it; and results that differ from those of one process. PowerSGD
wins where the link is slow and matrices are large. Vectors, and matrices that would not become
smaller by `min_compression_rate`, travel in buckets as without compression.

Source: Thijs Vogels, Sai Praneeth Karimireddy, Martin Jaggi, "PowerSGD: Practical Low-Rank Gradient
Compression for Distributed Optimization", NeurIPS 2019 (arXiv:1905.13727), algorithms 1 and 2. The
error is that of algorithm 2, by each rank's own Q; the authors' code uses the mean Q. The mean of
the errors over the ranks is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ringar.collectives.dtypes import ITEM_BYTES

_COMPRESSED = ("float32", "float64")


@dataclass(frozen=True)
class PowerSGD:
    """Send large gradients as two factors of low rank, with error feedback.

    float32 and float64 gradients are compressed; those of other dtypes, and sparse ones, are not.

    Attributes:
        rank: the number of columns of both factors. 1 to 4 is usual; more is more exact.
        min_compression_rate: a gradient is compressed if it becomes smaller by at least this
            factor.
        error_feedback: add the error of each step to the next step's gradient. Without it, no
            memory is needed, and training converges worse or not at all.
        seed: the seed of the first Q; must be the same on all ranks.

    Raises:
        ValueError: a setting is out of range.
    """

    rank: int = 2
    min_compression_rate: float = 2.0
    error_feedback: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise ValueError(f"`rank` must be a whole number from 1. Received: rank={self.rank!r}")
        if not self.min_compression_rate > 0:
            raise ValueError(
                "`min_compression_rate` must be positive. "
                f"Received: min_compression_rate={self.min_compression_rate!r}"
            )

    def factor_rank(self, shape: Sequence[int], dtype: str = "float32") -> int:
        """Return the number of columns of a gradient's factors; 0 if it is not compressed."""
        if len(shape) < 2 or 0 in shape or dtype not in _COMPRESSED:
            return 0
        rows, columns = matrix_shape(shape)
        rank = min(self.rank, rows, columns)
        smaller = rank * (rows + columns) * self.min_compression_rate <= rows * columns
        return rank if smaller else 0

    def sent_bytes(self, shapes: Iterable[Sequence[int]], dtype: str = "float32") -> int:
        """Return the bytes that one step reduces over the ranks, for gradients of these shapes.

        Args:
            shapes: the shapes of all dense gradients, compressed or not.
            dtype: the dtype of the gradients, "float32" or "float64".
        """
        elements = 0
        for shape in shapes:
            rank = self.factor_rank(shape, dtype)
            elements += rank * sum(matrix_shape(shape)) if rank else math.prod(shape)
        return elements * ITEM_BYTES[dtype]

    def first_q(self, index: int, columns: int, rank: int) -> np.ndarray:
        """Return the first Q [columns, rank], float64, of the gradient number `index`."""
        return np.random.default_rng([self.seed, index]).standard_normal((columns, rank))


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of the matrix for a tensor of at least two dimensions.

    Either the first or the last dimension is kept and the others are merged, whichever gives fewer
    rows plus columns: the output channels of a convolution, the input features of an attention
    head.
    """
    first = (shape[0], math.prod(shape[1:]))
    last = (math.prod(shape[:-1]), shape[-1])
    return min(last, first, key=sum)
