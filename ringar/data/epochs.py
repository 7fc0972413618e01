"""Epochs of Keras that begin at once, whatever TensorFlow's tuning of the last one's pipeline does.

TensorFlow tunes a pipeline in a thread of its own, for which the end of an iterator waits, as at
the end of each epoch. TensorFlow 2.21 wakes that thread before it says that the pipeline has ended
(`CancellationManager::StartCancel`). So the thread may miss the end and sleep on, up to the period
of its tuning: 10 ms at first, a minute in the end. On a rank with one core it does so as a rule,
and all ranks wait for the slowest.

Arrays, generators and `keras.utils.PyDataset` have nothing to tune: their batches come from memory
or from Python. A `tf.data.Dataset` of the user may have, and its iterators end in other threads.
"""

from __future__ import annotations

import sys
import threading
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


def ending_apart(original: Callable[..., None]) -> Callable[..., None]:
    """Let nobody wait for the end of an iterator that Keras makes of a `tf.data.Dataset`."""

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if isinstance(self._distributed_dataset, tf.data.Dataset):
            self._distributed_dataset = _Iterable(self._distributed_dataset)

    return initialize


class _Iterable:
    """A dataset whose iterators end in threads of their own."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Any:
        iterator = iter(self._dataset)
        if (resource := getattr(iterator, "_iterator_resource", None)) is not None:
            # Python drops the attributes of an object in the order in which it got them. So this
            # last one drops the last reference to the resource.
            iterator._ringar_end = _End(resource)
        return iterator


class _End:
    """Drops a resource of TensorFlow in a thread, which waits for its end without the GIL."""

    def __init__(self, resource: Any) -> None:
        self._resources = [resource]

    def __del__(self) -> None:
        if not sys.is_finalizing():  # where no thread can begin any more
            # The process waits for this thread before it ends.
            threading.Thread(target=self._resources.clear, name="ringar-iterator-end").start()
