"""Compare lists of variables, tensors or arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from ringar.parallel import Pipelined


def assert_all_close(
    values: Iterable[Any], expected: Iterable[Any], *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Compare two lists in pairs: bit for bit, if no tolerance is given."""
    for index, (value, reference) in enumerate(zip(values, expected, strict=True)):
        place = getattr(value, "path", f"item {index}")
        np.testing.assert_allclose(value, reference, rtol, atol, err_msg=place)


def assert_equal_modules(model: Pipelined, reference: keras.Model, atol: float = 0.0) -> None:
    """Compare this rank's module with the layers of the same names of a plain model."""
    for layer in model.network.layers:
        if layer.weights:
            assert_all_close(layer.weights, reference.get_layer(layer.name).weights, atol=atol)
