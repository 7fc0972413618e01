"""Initial values of a part: a slice of the initial values of the whole layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

from ringar.sharding.cut import Cut
from ringar.sharding.grid import Grid

if TYPE_CHECKING:
    import tensorflow as tf


class PartOf(keras.initializers.Initializer):
    """Initialize a part of a variable with a slice of the whole initial value.

    The whole value has the fan-in and fan-out of the whole layer. All ranks draw it from one seed,
    that of rank 0, and keep their slice only.

    Args:
        initializer: the initializer of the whole variable.
        axis: the axis along which the variable is cut.
        grid: the grid that has the parts.
    """

    def __init__(self, initializer: keras.initializers.Initializer, axis: int, grid: Grid) -> None:
        self._initializer, self._axis, self._grid = _agreed(initializer, grid), axis, grid

    def __call__(self, shape: Sequence[int], dtype: str | None = None, **options: Any) -> tf.Tensor:
        """Return this rank's part, an array of `shape`."""
        axis = self._axis % len(shape)
        dims = [dim * (self._grid.model if i == axis else 1) for i, dim in enumerate(shape)]
        start = self._grid.part * shape[axis]
        part = [slice(None)] * axis + [slice(start, start + shape[axis])]
        return self._initializer(tuple(dims), dtype=dtype)[tuple(part)]


class TileOf(keras.initializers.Initializer):
    """Initialize a part of any shape with its part of the whole initial value.

    Args:
        initializer: the initializer of the whole variable.
        shape: the shape of the whole variable.
        cut: how it is cut.
    """

    def __init__(self, initializer: keras.initializers.Initializer, shape: Sequence[int], cut: Cut):
        self._initializer, self._shape, self._cut = (
            _agreed(initializer, cut.grid),
            tuple(shape),
            cut,
        )

    def __call__(self, shape: Sequence[int], dtype: str | None = None, **options: Any) -> tf.Tensor:
        """Return this rank's part, an array of `shape`."""
        value = keras.ops.convert_to_numpy(self._initializer(self._shape, dtype=dtype))
        return keras.ops.convert_to_tensor(self._cut.part(value), dtype)


def _agreed(
    initializer: keras.initializers.Initializer, grid: Grid
) -> keras.initializers.Initializer:
    """Return the initializer with rank 0's seed."""
    seed = getattr(initializer, "seed", None)
    if not isinstance(seed, int):
        return initializer
    config = {**initializer.get_config(), "seed": grid.agree(seed)}
    return type(initializer).from_config(config)
