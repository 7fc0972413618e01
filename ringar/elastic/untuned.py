"""Input pipelines that TensorFlow does not tune while they run.

The end of an iterator waits for the thread that tunes its pipeline, and this thread may miss the
call to stop and sleep on, for up to a minute (seen in TensorFlow 2.21). Each change of an elastic
job ends one. A pipeline that only takes batches from Python has nothing to tune.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ringar.elastic.dataset import Dataset


def leaving_untuned(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let Keras leave the pipelines of `ringar.elastic.Dataset` untuned."""

    def get_tf_dataset(self: Any) -> Any:
        dataset = original(self)
        if not isinstance(getattr(self, "py_dataset", None), Dataset):
            return dataset
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options)

    return get_tf_dataset
