"""Gradients of one push as arrays: dense, as rows, or none; their checks and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ringar.errors import MismatchError


class Rows(NamedTuple):
    """Hold a sparse gradient: some rows of a variable; the others are zero.

    Attributes:
        indices: the rows, int64, each at most once.
        values: array of shape [number of rows, ...], with the shape of the variable's rows.
    """

    indices: np.ndarray
    values: np.ndarray


Gradient: TypeAlias = "np.ndarray | Rows | None"
"""The gradient by one variable; None if the loss does not depend on it."""


class Kind(NamedTuple):
    """Describe a variable of a shard.

    Attributes:
        name: in errors.
        shape: its shape.
        dtype: its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: npt.DTypeLike


def check(gradients: Sequence[Gradient], kinds: Sequence[Kind], source: str) -> None:
    """Raise a MismatchError if gradients do not fit the variables of a shard.

    Args:
        gradients: the gradients of a push.
        kinds: the variables of the shard.
        source: the push, for the message.
    """
    if len(gradients) != len(kinds):
        raise MismatchError(
            f"{source} has {len(gradients)} gradients. Expected: {len(kinds)}, one per variable "
            "of the shard."
        )
    for gradient, kind in zip(gradients, kinds, strict=True):
        problem = _problem(gradient, kind)
        if problem:
            raise MismatchError(
                f"{source} has a gradient of `{kind.name}` that does not fit: {problem} "
                "Build the same model on all workers and on the shard."
            )


def _problem(gradient: Gradient, kind: Kind) -> str:
    """Return the fault of a gradient, or an empty string."""
    if gradient is None:
        return ""
    values, shape = _values(gradient), kind.shape
    if isinstance(gradient, Rows):
        shape = (len(gradient.indices), *kind.shape[1:])
    if values.shape != shape or (not kind.shape and isinstance(gradient, Rows)):
        return f"shape {list(values.shape)}. Expected: {list(shape)}."
    if values.dtype != kind.dtype:
        return f"dtype {values.dtype}. Expected: {kind.dtype}."
    if isinstance(gradient, Rows) and len(gradient.indices):
        first, last = gradient.indices.min(), gradient.indices.max()
        if first < 0 or last >= kind.shape[0]:
            return f"rows {first} to {last}. Expected: rows from 0 to {kind.shape[0] - 1}."
    return ""


def copy(gradient: Gradient) -> Gradient:
    """Return a gradient that shares no memory with this one."""
    if isinstance(gradient, Rows):
        return Rows(gradient.indices.copy(), gradient.values.copy())
    return None if gradient is None else gradient.copy()


def merged(rows: Rows) -> Rows:
    """Return a sparse gradient with its equal rows added up; the same one if there are none."""
    indices, places = np.unique(rows.indices, return_inverse=True)
    if indices.size == rows.indices.size:
        return rows
    values = np.zeros((indices.size, *rows.values.shape[1:]), rows.values.dtype)
    np.add.at(values, places, rows.values)
    return Rows(indices, values)


def weighted_mean(gradients: Sequence[Gradient], weights: Sequence[float]) -> Gradient:
    """Return the sum of `weights[i] * gradients[i]` over the sum of `weights`.

    The sum is in the order of `gradients`. Rows stay rows if all gradients of the variable are rows
    or None, which counts as zero.

    Args:
        gradients: the gradients by one variable.
        weights: positive numbers.
    """
    if len(gradients) == 1:
        return gradients[0]
    terms = [(g, w) for g, w in zip(gradients, weights, strict=True) if g is not None]
    if not terms:
        return None
    rows = None
    if all(isinstance(gradient, Rows) for gradient, _ in terms):
        rows = np.unique(np.concatenate([g.indices for g, _ in terms if isinstance(g, Rows)]))
    total = _zeros([gradient for gradient, _ in terms], rows)
    dtype = _values(terms[0][0]).dtype
    for gradient, weight in terms:
        if isinstance(gradient, Rows):
            at = gradient.indices if rows is None else np.searchsorted(rows, gradient.indices)
            total[at] += total.dtype.type(weight) * gradient.values
        elif gradient is not None:
            total += total.dtype.type(weight) * gradient
    total /= total.dtype.type(sum(weights))
    mean = total.astype(dtype, copy=False)
    return mean if rows is None else Rows(rows, mean)


def _values(gradient: Gradient) -> np.ndarray:
    assert gradient is not None
    return gradient.values if isinstance(gradient, Rows) else gradient


def _zeros(gradients: Sequence[Gradient], rows: np.ndarray | None) -> np.ndarray:
    """Return zeros of the shape of the mean, in a dtype of at least 32 bits."""
    values = [_values(gradient) for gradient in gradients]
    dtype = np.result_type(values[0].dtype, np.float32)
    if rows is not None:
        return np.zeros((len(rows), *values[0].shape[1:]), dtype)
    dense = next(g for g in gradients if not isinstance(g, Rows))
    return np.zeros(_values(dense).shape, dtype)
