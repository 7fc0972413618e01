"""The whole value of a variable that is cut, from the parts of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ringar.collectives.allgather import allgather
from ringar.sharding.cut import Cut


def whole_of(part: Any, cut: Cut | None, name: str | None = None) -> np.ndarray:
    """Return the whole value, on every rank. Collective over the model group.

    Args:
        part: this rank's part: a variable or an array.
        cut: how it is cut; None if every rank has the whole.
        name: of the messages; by default that of the variable.
    """
    value = np.asarray(keras.ops.convert_to_numpy(part))
    if cut is None or cut.grid.model == 1:
        return value
    ranks, name = cut.grid.model_set, f"whole/{name or part.name}"
    shapes = allgather(np.array([value.shape], np.int64), name=name, process_set=ranks)
    numbers = allgather(value.ravel(), name=name, process_set=ranks)
    ends = np.cumsum(np.prod(shapes, axis=1))[:-1]
    parts = zip(np.split(numbers, ends), shapes, strict=True)
    return cut.join([part.reshape(shape) for part, shape in parts])
