"""Epochs of Keras that begin at once, whatever TensorFlow's tuning of the last one's pipeline does.

TensorFlow tunes a pipeline in a thread of its own, for which the end of an iterator waits, as at
the end of each epoch. TensorFlow 2.21 wakes that thread before it says that the pipeline has ended
(`CancellationManager::StartCancel`). So the thread may miss the end and sleep on, up to the period
of its tuning: 10 ms at first, a minute in the end. On a rank with one core it does so as a rule,
and all ranks wait for the slowest.

Arrays, generators and `keras.utils.PyDataset` have nothing to tune: their batches come from memory
or from Python. A `tf.data.Dataset` of the user may have, and its iterators end in other threads,
unless the end has an effect that the next iterator must see.
"""

from __future__ import annotations

import re
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
        dataset = self._distributed_dataset
        if isinstance(dataset, tf.data.Dataset) and not _has_effect_at_end(dataset):
            self._distributed_dataset = _Iterable(dataset)

    return initialize


#: Ops of pipelines that close a generator, or delete or complete files, when an iterator ends; and
#: pipelines of unknown ops.
_EFFECTS = re.compile(
    "GeneratorDataset|CacheDataset|SnapshotDataset|SaveDataset|DataService|VariantDataset"
)


def _has_effect_at_end(dataset: Any) -> bool:
    """Return whether the end of an iterator does more than free memory, or might."""
    try:
        name = type(dataset).__name__
        is_in_memory = name == "CacheDataset" and not dataset._filename.numpy()
        return (
            (_EFFECTS.search(name) is not None and not is_in_memory)
            or any(_calls_for_effect(function) for function in dataset._functions())
            or any(map(_has_effect_at_end, dataset._inputs()))
        )  # fmt: skip
    except AttributeError:  # another TensorFlow keeps them elsewhere
        return True


def _calls_for_effect(function: Any) -> bool:
    graph = function.function.graph.as_graph_def()
    bodies = [graph.node, *(inner.node_def for inner in graph.library.function)]
    return any(_EFFECTS.search(node.op) for nodes in bodies for node in nodes)


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
