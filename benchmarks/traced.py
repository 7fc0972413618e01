"""Calls a traced tf.function, for all adapters that run TensorFlow ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def in_function(function: Callable[[Any], Any], array: np.ndarray) -> Callable[[], Any]:
    """A function that calls a traced ``tf.function`` on the same tensor each time."""
    import tensorflow as tf

    tensor = tf.constant(array)
    traced = tf.function(function).get_concrete_function(tensor)
    return lambda: traced(tensor)
