"""The rows of the last loss, for loops without a `train_step`.

A `keras.losses.Loss` under a gradient tape tells how many rows the batch has. They count for the
gradients that this tape computes. A tape without such a loss computes gradients of an unknown
number of rows, whatever the loop has computed before.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record as tape_record
from tensorflow.python.framework import ops as tf_ops


class _Recording(threading.local):
    """Hold the tapes that record in this thread."""

    def __init__(self) -> None:
        self.tapes: weakref.WeakSet[tf.GradientTape] = weakref.WeakSet()


_recording = _Recording()
_in_eager_code: list[Any] = [None]


def beginning(enter: Callable[..., Any]) -> Callable[..., Any]:
    """Let a gradient tape tell that it records from now on."""

    def begin(self: tf.GradientTape) -> tf.GradientTape:
        _recording.tapes.add(self)
        return enter(self)

    return begin


def ending(leave: Callable[..., Any]) -> Callable[..., Any]:
    """Let a gradient tape tell that it records no longer."""

    def end(self: tf.GradientTape, *error: Any) -> None:
        _recording.tapes.discard(self)
        leave(self, *error)

    return end


def computing(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Let a gradient tape tell the rows of its gradients."""

    def compute(self: tf.GradientTape, *args: Any, **options: Any) -> Any:
        gradients = gradient(self, *args, **options)
        _remember(_of_tape(self))  # last: a tape may compute by others
        return gradients

    return compute


def note(y_pred: Any) -> None:
    """Remember the rows of a loss under a gradient tape."""
    batch: Any = next(iter(tf.nest.flatten(y_pred)), None)
    if not tf.is_tensor(batch) or not batch.shape.rank or not tape_record.could_possibly_record():
        return
    rows = int(batch.shape[0]) if tf.executing_eagerly() else batch
    _remember(rows)
    for tape in _recording.tapes:
        tape._ringar_rows = (_graph(), rows)


def latest() -> Any:
    """Return the rows of the last gradients, a number or a batch of the graph; None: unknown."""
    if tf.executing_eagerly():
        return _in_eager_code[0]
    for graph in _graphs():
        if hasattr(graph, "_ringar_rows"):
            return graph._ringar_rows
    return None


def _remember(rows: Any) -> None:
    if tf.executing_eagerly():
        _in_eager_code[0] = rows
    else:
        tf_ops.get_default_graph()._ringar_rows = rows


def _of_tape(tape: tf.GradientTape) -> Any:
    """Return the rows of the last loss under a tape, if they are known in this graph."""
    graph, rows = getattr(tape, "_ringar_rows", (None, None))
    if tf.executing_eagerly():
        return rows if graph is None else None
    return rows if any(graph is outer for outer in _graphs()) else None


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf_ops.get_default_graph()


def _graphs() -> list[Any]:
    """Return the graph under construction, and those around it."""
    graph, graphs = _graph(), []
    while graph is not None:
        graphs.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return graphs
