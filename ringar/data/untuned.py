"""Input pipelines of Keras that TensorFlow does not tune while they run.

TensorFlow tunes a pipeline in a thread of its own, for which the end of an iterator waits, as at
the end of each epoch. TensorFlow 2.21 wakes that thread before it says that the pipeline has ended
(`CancellationManager::StartCancel`). So the thread may miss the end and sleep on, up to the period
of its tuning: 10 ms at first, a minute in the end. On a rank with one core it does so as a rule,
and all ranks wait for the slowest. Arrays, generators and `keras.utils.PyDataset` have nothing to
tune: their batches come from memory or from Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def leaving_untuned(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let Keras leave a pipeline that it has made untuned."""

    def get_tf_dataset(self: Any) -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        return original(self).with_options(options)

    return get_tf_dataset
