"""Rows of several arrays in one, as `keras.Model.predict` returns them.

Rows of one shape are a NumPy array. Rows of different shapes, such as the tokens of sentences that
were padded batch by batch, are a `tf.RaggedTensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Rows: TypeAlias = "np.ndarray | tf.RaggedTensor"


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, in order.

    Args:
        parts: one or more, with the same number of dimensions.
    """
    lengths = zip(*(part.shape[1:] for part in parts), strict=True)
    varying = [axis for axis, of_parts in enumerate(lengths, 1) if _varies(set(of_parts))]
    if not varying:
        return np.concatenate(parts)
    return tf.concat([_to_ragged(part, varying[-1]) for part in parts], axis=0)


def take(rows: Rows, places: np.ndarray) -> Rows:
    """Return the rows at `places`."""
    return rows[places] if isinstance(rows, np.ndarray) else tf.gather(rows, places)


def pack(rows: Rows | None) -> Any:
    """Return `rows` as arrays, which can be pickled; None for None."""
    if not isinstance(rows, tf.RaggedTensor):
        return rows
    return rows.flat_values.numpy(), [splits.numpy() for splits in rows.nested_row_splits]


def unpack(packed: Any) -> Rows:
    """Return the rows that `pack` was given."""
    if isinstance(packed, np.ndarray):
        return packed
    return tf.RaggedTensor.from_nested_row_splits(*packed)


def _varies(lengths: set[int | None]) -> bool:
    """Return whether rows differ along an axis of these lengths, None where it is ragged."""
    return len(lengths) > 1 or None in lengths


def _to_ragged(part: Rows, depth: int) -> tf.RaggedTensor:
    """Return `part` with the axes up to `depth` ragged."""
    if isinstance(part, np.ndarray):
        return tf.RaggedTensor.from_tensor(part, ragged_rank=depth)
    levels = depth - part.ragged_rank
    if levels <= 0:
        return part
    return part.with_flat_values(_to_ragged(part.flat_values.numpy(), levels))
