"""A rank's place as tensors, whose values are those of the time at which they are computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ringar.job import membership, place, process_sets


def _scalar(read: Callable[[], int], name: str | None) -> tf.Tensor:
    """Return an int32 scalar: a constant where nothing can change it, else a call of `read`."""
    if tf.executing_eagerly() or (place.is_initialized() and not membership.is_elastic()):
        return tf.constant(read(), tf.int32, name=name)
    value = tf.numpy_function(lambda: np.int32(read()), [], tf.int32, name=name)
    return tf.ensure_shape(value, [])


def _of_set(process_set_id: int, value: Callable[[process_sets.ProcessSet], int | None]) -> int:
    if not place.is_initialized():
        return -1  # HOROVOD_PROCESS_SET_ERROR_INIT
    sets = {process_set.process_set_id: process_set for process_set in process_sets.in_use()}
    if process_set_id not in sets:
        return -3  # HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET
    return int(value(sets[process_set_id]) or 0)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return the number of ranks of a process set, an int32 scalar; -1 before `init`."""
    return _scalar(lambda: _of_set(process_set_id, lambda ranks: ranks.size()), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return 1 if this rank is in a process set, else 0; -1 before `init`, -3 for no set."""
    return _scalar(lambda: _of_set(process_set_id, lambda ranks: ranks.included()), name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """Return this rank's number, an int32 scalar; -1 before `init`."""
    return _scalar(lambda: place.rank() if place.is_initialized() else -1, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return this rank's number on its host, an int32 scalar; -1 before `init`."""
    return _scalar(lambda: place.local_rank() if place.is_initialized() else -1, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return the number of ranks on this host, an int32 scalar; -1 before `init`."""
    return _scalar(lambda: place.local_size() if place.is_initialized() else -1, name)
