"""Initial values of a part: cut out of what the whole layer would begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ringar.sharding.grid import Grid


class PartOf(keras.initializers.Initializer):
    """Initialize a part of a variable as another initializer does the whole.

    The whole has the fan-in and fan-out of the whole layer, and all ranks draw it from one seed,
    that of rank 0. It exists for a moment only.

    Args:
        whole: for the whole variable.
        axis: along which it is cut.
        grid: whose parts get it.
    """

    def __init__(self, whole: Any, axis: int, grid: Grid) -> None:
        self._whole, self._axis, self._grid = _agreed(whole, grid), axis, grid

    def __call__(self, shape: Sequence[int], dtype: Any = None, **options: Any) -> Any:
        """Return this rank's part, an array of `shape`."""
        axis = self._axis % len(shape)
        whole = [dim * (self._grid.model if i == axis else 1) for i, dim in enumerate(shape)]
        start = self._grid.part * shape[axis]
        part = [slice(None)] * axis + [slice(start, start + shape[axis])]
        return self._whole(tuple(whole), dtype=dtype)[tuple(part)]


def _agreed(initializer: Any, grid: Grid) -> Any:
    """Return the initializer, with the seed that rank 0 has."""
    seed = getattr(initializer, "seed", None)
    if not isinstance(seed, int):
        return initializer
    config = {**initializer.get_config(), "seed": grid.agree(seed)}
    return type(initializer).from_config(config)
