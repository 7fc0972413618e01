"""The scan of a chain of dense matrices: the op, and its gradient.

`tf_ops/scan/scan.cc` has the algorithm. The gradient of a chain is another one, through the same
matrices in the other direction,

    v_t = M_t v_{t-1} + a_t      d_{t-1} = M_t^T d_t + (upstream gradient of v_{t-1})

and dL/dM_t is the outer product of d_t and v_{t-1}. The gradient of a scan is therefore a scan, and
differentiable itself.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ringar.parallel.scan import computation

CHOSEN = -1
"""Stands for the levels that the library's cost model chooses (tf_ops/scan/choice.cc)."""

WHOLE = 62
"""More levels than any tree has."""

Differentiable = tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]
"""For `tf.custom_gradient`: a result, and a function of its gradient."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Hold the options of a scan.

    Attributes:
        levels: the levels of the up-sweep, before a serial pass; 0 is the serial chain, CHOSEN the
            library's choice.
        threads: the number of threads.
    """

    levels: int
    threads: int


def scan(
    matrices: tf.Tensor,
    vector: tf.Tensor,
    addends: tf.Tensor | None = None,
    *,
    adjoint: bool = False,
    levels: int | None = None,
    threads: int | None = None,
) -> tf.Tensor:
    """Apply a chain of matrices to a vector and return the vector after each of them.

    `v_0 = vector`, `v_t = M_t v_{t-1} (+ a_t)`, for each example of a batch: the exclusive scan
    of [v_0, M_1, ..., M_n, end] without its first element, the identity. With `adjoint=True` it is
    back-propagation through steps t = 1 ... n with Jacobians `J_t`: `v_n = vector`,
    `v_{t-1} = J_t^T v_t (+ a_{t-1})`. The arguments are neither transposed nor reversed for it.

    Differentiable in matrices, vector and addends, any number of times (in compiled functions
    once). Results for different `levels` differ by rounding, unless a product of matrices leaves
    the range of the dtype, which can happen where the vectors stay within it. A value that is
    infinite or NaN at one step affects only the results that depend on that step.

    Args:
        matrices: (n, batch, size, size), float32 or float64; `matrices[t - 1]` belongs to step t.
        vector: (batch, size).
        addends: (n, batch, size), in the order of the matrices, or None.
        adjoint: whether to go from the end to the beginning, with transposed matrices.
        levels: the number of levels of the tree, before a serial pass. 0 is the serial chain,
            `ceil(log2(n + 1))` or more the whole scan; None: the choice of a cost model.
        threads: the number of threads; by default that of TensorFlow's intra-op pool.

    Returns:
        (n + 1, batch, size): v_0 ... v_n.

    Raises:
        TypeError: for a dtype other than float32 and float64, or several of them.
        ValueError: for shapes that do not fit, levels below 0 or threads below 1.

    The algorithm is that of Wang, Bai and Pekhimenko, "BPPSA: scaling back-propagation by parallel
    scan algorithm" (MLSys 2020).
    """
    options = Options(levels_of(levels), computation.usable_threads(threads))
    matrices = tf.convert_to_tensor(matrices)
    vector = tf.convert_to_tensor(vector)
    if addends is not None:
        addends = tf.convert_to_tensor(addends)
    check(matrices, vector, addends)
    return _scan(matrices, vector, addends, adjoint, options)


def reduce_chain(
    matrices: tf.Tensor, addends: tf.Tensor | None, *, adjoint: bool, options: Options
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the whole chain as one map: product (batch, size, size) and addend (batch, size).

    The product is that of matrices in the order of the chain, M_n ... M_1; of an adjoint one it is
    J_n ... J_1, which the caller transposes. Not differentiable.
    """
    batch, size = matrices.shape[1], matrices.shape[2]
    product, addend = computation.compute(
        "scan_reduce",
        [matrices, computation.or_empty(addends, matrices.dtype)],
        [
            tf.TensorSpec([batch, size, size], matrices.dtype),
            tf.TensorSpec([batch, size], matrices.dtype),
        ],
        adjoint=adjoint,
        levels=options.levels,
        threads=options.threads,
    )
    return product, addend


def run(
    matrices: tf.Tensor,
    vector: tf.Tensor,
    addends: tf.Tensor | None,
    adjoint: bool,
    options: Options,
) -> tf.Tensor:
    """Return the scan itself, without a gradient."""
    steps = None if matrices.shape[0] is None else matrices.shape[0] + 1
    (vectors,) = computation.compute(
        "scan",
        [matrices, vector, computation.or_empty(addends, matrices.dtype)],
        [tf.TensorSpec([steps, *vector.shape], matrices.dtype)],
        adjoint=adjoint,
        adds=addends is not None,
        levels=options.levels,
        threads=options.threads,
    )
    return vectors


def _scan(
    matrices: tf.Tensor,
    vector: tf.Tensor,
    addends: tf.Tensor | None,
    adjoint: bool,
    options: Options,
) -> tf.Tensor:
    def differentiable(
        matrices: tf.Tensor, vector: tf.Tensor, *addends: tf.Tensor
    ) -> Differentiable:
        vectors = run(matrices, vector, addends[0] if addends else None, adjoint, options)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            return gradients(matrices, vectors, upstream, adjoint, options)[: 2 + len(addends)]

        return vectors, gradient

    tensors = () if addends is None else (addends,)
    return tf.custom_gradient(differentiable)(matrices, vector, *tensors)


def gradients(
    matrices: tf.Tensor, vectors: tf.Tensor, upstream: tf.Tensor, adjoint: bool, options: Options
) -> list[tf.Tensor]:
    """Return gradients with respect to matrices, vector and addends.

    Args:
        matrices: the matrices of the chain.
        vectors: the result of its scan.
        upstream: gradients with respect to `vectors`.
        adjoint: the direction of the chain; that of its gradient is the opposite.
        options: the options of both.
    """
    if adjoint:
        back = _scan(matrices, upstream[0], upstream[1:], False, options)
        return [vectors[1:, ..., :, None] * back[:-1, ..., None, :], back[-1], back[:-1]]
    back = _scan(matrices, upstream[-1], upstream[:-1], True, options)
    return [back[1:, ..., :, None] * vectors[:-1, ..., None, :], back[0], back[1:]]


# For second gradients, for which TensorFlow asks the op.
@tf.RegisterGradient("RingarScan")
def _gradient_of_op(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    text = op.get_attr("options").decode()
    read = dict(word.split("=") for word in text.split())
    options = Options(int(read["levels"]), int(read["threads"]))
    derivatives = gradients(op.inputs[0], op.outputs[0], upstream, read["adjoint"] == "1", options)
    return [*derivatives[:2], derivatives[2] if read["adds"] == "1" else None]


def levels_of(levels: Any) -> int:
    """Return the number for the argument `levels` of `scan`, or raise ValueError."""
    if levels is None:
        return CHOSEN
    if isinstance(levels, bool) or not isinstance(levels, numbers.Integral) or levels < 0:
        raise ValueError(f"`levels` must be None or an integer, 0 or more. Received: {levels!r}")
    return min(int(levels), WHOLE)


def check(matrices: tf.Tensor, vector: tf.Tensor, addends: tf.Tensor | None = None) -> None:
    """Raise for dtypes and shapes that `scan` cannot use."""
    tensors = {"matrices": matrices, "vector": vector}
    if addends is not None:
        tensors["addends"] = addends
    for name, tensor in tensors.items():
        if tensor.dtype not in computation.DTYPES or tensor.dtype != matrices.dtype:
            raise TypeError(
                "scan: `matrices`, `vector` and `addends` must be of one dtype, float32 or "
                f"float64. Received: {name} of {tensor.dtype.name}, matrices of "
                f"{matrices.dtype.name}"
            )
    for name, tensor in tensors.items():
        if tensor.shape.rank is None:
            raise ValueError(f"scan: `{name}` must have a known number of dimensions.")
    if matrices.shape.rank != 4 or not matrices.shape[2:3].is_compatible_with(matrices.shape[3:4]):
        raise ValueError(
            "scan: `matrices` must have the shape (n, batch, size, size). "
            f"Received: {matrices.shape}"
        )
    for name, expected in (("vector", matrices.shape[1:3]), ("addends", matrices.shape[:3])):
        if name in tensors and not tensors[name].shape.is_compatible_with(expected):
            raise ValueError(
                f"scan: `{name}` must have the shape {expected}, to match matrices of shape "
                f"{matrices.shape}. Received: {tensors[name].shape}"
            )
