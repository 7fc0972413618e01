"""Compare a module of a pipeline."""

from __future__ import annotations

import keras

from ringar.parallel import Pipelined
from tests.comparison import assert_all_close


def assert_equal_modules(
    model: Pipelined, reference: keras.Model, atol: float = 0.0, rtol: float = 0.0
) -> None:
    """Compare this rank's module with the layers of the same names of a plain model."""
    for layer in model.network.layers:
        if layer.weights:
            expected = reference.get_layer(layer.name).weights
            assert_all_close(layer.weights, expected, rtol=rtol, atol=atol)
