"""Checks of the arguments of `ringar.cupy.scan`."""

from __future__ import annotations

from typing import Any

import numpy as np

_MAX_STEPS = 2**30


def check(
    array_type: Any, matrices: Any, vector: Any, addends: Any, adjoint: Any, levels: Any
) -> None:
    """Raise TypeError or ValueError for arguments that `scan` does not support.

    Args:
        array_type: the type of arrays, `cupy.ndarray`.
        matrices: the argument of `scan`.
        vector: the argument of `scan`.
        addends: the argument of `scan`.
        adjoint: the argument of `scan`.
        levels: the argument of `scan`.
    """
    arrays: dict[str, Any] = {"matrices": matrices, "vector": vector, "addends": addends}
    if addends is None:
        del arrays["addends"]
    for name, array in arrays.items():
        if not isinstance(array, array_type):
            expected = f"{array_type.__module__.split('.')[0]}.{array_type.__name__}"
            raise TypeError(
                f"`{name}` must be a {expected}. Received: {name} of type {type(array).__name__}"
            )
        if array.dtype not in (np.float32, np.float64) or array.dtype != matrices.dtype:
            expected = (
                "float32 or float64" if name == "matrices" else f"{matrices.dtype}, as matrices"
            )
            raise TypeError(f"`{name}` must be {expected}. Received: {name} of dtype {array.dtype}")
    if matrices.ndim != 4 or matrices.shape[2] != matrices.shape[3]:
        raise ValueError(f"`matrices` must be [n, B, H, H]. Received: shape {matrices.shape}")
    n, batch, size = matrices.shape[:3]
    if size == 0 or n > _MAX_STEPS:
        raise ValueError(
            f"`matrices` must be [n, B, H, H] with n <= {_MAX_STEPS} and H >= 1. "
            f"Received: shape {matrices.shape}"
        )
    for name, wanted_shape in (("vector", (batch, size)), ("addends", (n, batch, size))):
        if name in arrays and arrays[name].shape != wanted_shape:
            raise ValueError(
                f"`{name}` must have shape {wanted_shape}, to go with matrices of shape "
                f"{matrices.shape}. Received: shape {arrays[name].shape}"
            )
    if not isinstance(adjoint, (bool, np.bool_)):
        raise TypeError(f"`adjoint` must be True or False. Received: adjoint={adjoint!r}")
    is_integer = isinstance(levels, (int, np.integer)) and not isinstance(levels, bool)
    if levels is not None and not is_integer:
        raise TypeError(f"`levels` must be None or a whole number. Received: levels={levels!r}")
    if levels is not None and levels < 0:
        raise ValueError(f"`levels` must be None or from 0. Received: levels={levels}")


def check_devices(matrices: Any, vector: Any, addends: Any) -> None:
    """Raise ValueError unless all arrays are on one GPU."""
    for name, array in (("vector", vector), ("addends", addends)):
        if array is not None and array.device != matrices.device:
            raise ValueError(
                f"`{name}` must be on the GPU of matrices, {matrices.device.id}. "
                f"Received: {name} on {array.device.id}"
            )
