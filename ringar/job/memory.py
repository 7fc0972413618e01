"""NumPy arrays on memory that others own: the native library, or a caller of its interface."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class Memory:
    """Describe memory to NumPy; an array on it keeps the owner alive."""

    def __init__(self, address: int, size: int, owner: object) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip


def array_at(address: int | None, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an array on memory that its owner keeps; an empty array may have no address."""
    size = math.prod(shape) * dtype.itemsize
    if not size or not address:
        return np.empty(shape, dtype)
    return np.asarray(Memory(address, size, None)).view(dtype).reshape(shape)
