"""The order of collectives in a branch of a graph, and of those behind it.

A `tf.function` runs stateful ops in program order, but ops with variables among their inputs, as
most conditionals have, only in the order of the accesses to those variables. A collective behind a
conditional could therefore be issued before those within. Where a branch has collectives, they
write to a variable, which the next reduction of gradients reads first. (Compiled code has such a
variable for all collectives: `ringar.collectives.compiled`.)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from ringar.collectives.compiled import is_compiling


def note(results: Sequence[Any]) -> None:
    """Note that collectives were issued, perhaps in a branch.

    Args:
        results: ops or tensors that follow them.
    """
    graph = _outermost_graph()
    if graph is None:
        return
    graph._ringar_has_branches = True
    with tf.control_dependencies(results):
        _token().assign_add(1)


def act_if(
    condition: tf.Tensor, act: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None
) -> None:
    """Run `act` if `condition` is true, else `otherwise`, in a graph or at once."""

    def branch(action: Callable[[], Any]) -> tf.Tensor:
        action()
        return tf.constant(0)

    tf.cond(condition, functools.partial(branch, act), functools.partial(branch, otherwise))


def behind() -> AbstractContextManager[Any]:
    """Return a context whose ops run after the collectives that were noted."""
    graph = _outermost_graph()
    if graph is None or not hasattr(graph, "_ringar_has_branches"):
        return contextlib.nullcontext()
    return tf.control_dependencies([_token().read_value()])


def _outermost_graph() -> Any:
    if tf.executing_eagerly() or is_compiling() or not tf.inside_function():
        return None
    graph = tf_ops.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph


@functools.cache
def _token() -> tf.Variable:
    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.Variable(0, trainable=False, dtype=tf.int64, name="ringar_branches")
