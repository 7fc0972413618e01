"""Calls a traced tf.function, for all adapters that run TensorFlow ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def in_function(function: Callable[[Any], Any], array: np.ndarray) -> Callable[[], Any]:
    """Returns a function that calls a traced `tf.function` on the same tensor each time.

    `function` must have one parameter and no others with defaults: with those each call of the
    traced function is bound anew by Python code, which takes up to a millisecond.
    """
    import tensorflow as tf

    tensor = tf.constant(array)
    traced = tf.function(function).get_concrete_function(tensor)
    return lambda: traced(tensor)
