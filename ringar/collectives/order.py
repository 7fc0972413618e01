"""The order of collectives in a graph: on all ranks that of the program.

In a `tf.function` TensorFlow keeps the order of stateful ops, except for those that use resources:
these wait only for others with the same resource. The call of a function uses its variables. So the
collectives of one function could begin before those of an earlier one, and in another order on each
rank. TensorFlow has a chain of calls for collectives of its own (`_collective_manager_ids`), which
functions with our collectives join. A graph that has collectives beside such calls, or beside
conditionals and loops with collectives, gets the missing edges.

A graph of TensorFlow 1 runs in parts, as a session fetches them. There every collective draws a
ticket, and the tickets are in the order of the program; collectives in its functions, conditionals
and loops are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies
from tensorflow.python.framework.func_graph import FuncGraph

from ringar.collectives.call import TICKET, Call
from ringar.errors import UnsupportedError

Made = TypeVar("Made")

_CHAIN = int.from_bytes(b"ringar", "big")  # far from the numbers of TensorFlow's own chains
_BRANCHES = {"If": ("then_branch", "else_branch"), "Case": ("branches",), "While": ("body",)}
_OF_GRAPH_ITSELF = (
    "Two calls could run in one session.run, in another order on each rank: call the collective "
    "outside, or run the program without tf.compat.v1.Session."
)
_FETCHED = (
    "A session runs what it fetches, and this call has no result: take a collective that returns a "
    "tensor, and let the session fetch it."
)
_functions: set[str] = set()  # the names of functions with collectives


def in_session_graph() -> bool:
    """Return whether the code that runs now adds ops to a graph of TensorFlow 1.

    A session runs such a graph, or a part of it; nothing else does.
    """
    if tf.executing_eagerly():
        return False
    with tf.init_scope():
        return not tf.executing_eagerly()


def check_session_graph(call: Call, has_result: bool = True) -> None:
    """Refuse a collective in a graph of TensorFlow 1 that could not be ordered, or would never run.

    Args:
        call: the collective.
        has_result: whether the user gets a tensor that a session can fetch.

    Raises:
        UnsupportedError: the collective is in a function, a conditional or a loop of the graph, or
            has no result.
    """
    if not in_session_graph():
        return
    part = _inner_graph()
    if part is not None:
        expected = "a collective of the graph itself in a graph of TensorFlow 1"
        received, remedy = f"one in {part}", _OF_GRAPH_ITSELF
    elif not has_result:
        expected, received = "eager code or a tf.function", "a graph of TensorFlow 1"
        remedy = _FETCHED
    else:
        return
    raise UnsupportedError(call.refusal(expected, received, remedy))


def _inner_graph() -> str | None:
    """Return the part of a graph of TensorFlow 1 in which the code runs; None: the graph itself."""
    graph = tf_ops.get_default_graph()
    if tf.inside_function():
        return f"the function or branch {graph.name!r}"
    if graph._get_control_flow_context() is not None:
        return "a conditional or a loop"
    return None


def in_order(make: Callable[[], Made]) -> Made:
    """Make an op that TensorFlow runs after the previous one.

    A `tf.function` keeps the program order of stateful ops. The functions that TensorFlow derives
    for gradients do not, and neither do graphs of TensorFlow 1.
    """
    if tf.executing_eagerly():
        return make()
    graph = tf_ops.get_default_graph()
    last = _last_in(graph)
    if getattr(graph, "experimental_acd_manager", None) is not None:
        outputs = make()
    elif tf.inside_function():
        with tf.control_dependencies(last):
            outputs = make()
        graph._ringar_last = tf.nest.flatten(outputs)[:1]
    else:
        outputs = _ticket_in_session_graph(make, last)
        graph._ringar_last = [outputs]
    _join_chain(graph, tf.nest.flatten(outputs)[0])
    return outputs


def _last_in(graph: tf.Graph) -> list[tf.Tensor]:
    """Return the ops that the next one follows; those of an imported graph have no record."""
    if not hasattr(graph, "_ringar_last"):
        tickets = [] if tf.inside_function() else graph.get_operations()
        graph._ringar_last = [op.outputs[0] for op in tickets if op.type == TICKET]
    last: list[tf.Tensor] = graph._ringar_last
    return last


def _ticket_in_session_graph(make: Callable[[], Any], last: Sequence[tf.Tensor]) -> Any:
    """Make a ticket behind the one before it, in a graph of TensorFlow 1.

    A ticket has no inputs and no other dependencies, not even those of the user's context. So a
    session that fetches one collective draws the tickets of those before it without running
    anything else, and TensorFlow drops these tickets at once.
    """
    with tf.control_dependencies(None):
        ticket = make()
    for before in last:
        # tf.control_dependencies would mark `before`, which a session may have run already.
        ticket.op._add_control_input(before.op)
    return ticket


def follow_ticket(op: tf.Operation, has_outputs: bool) -> None:
    """Let TensorFlow issue an op as soon as its inputs are ready; its ticket keeps the order.

    Otherwise each stateful op waits for the end of the one before it in the program. Functions that
    TensorFlow derives for gradients drop ops on which no result depends, so an op without outputs
    becomes a control output there.
    """
    op.graph._ringar_has_tickets = True
    if manager := getattr(op.graph, "experimental_acd_manager", None):
        manager.run_independently(op)
    elif tf.inside_function() and not has_outputs:
        op.graph.control_outputs.append(op)


def has_tickets() -> bool:
    """Return whether earlier collectives of the graph may hold a ticket without being issued.

    A later collective must not block a thread: they may need it in order to be issued.
    """
    graph = None if tf.executing_eagerly() else tf_ops.get_default_graph()
    while graph is not None:
        if getattr(graph, "_ringar_has_tickets", False):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


class _Dependencies(AutomaticControlDependencies):
    """Add control dependencies to a graph that has collectives, or calls functions with them."""

    @property
    def collective_manager_ids_used(self) -> dict[int, object]:
        """The chains of the graph, which TensorFlow asks for once, when the graph is complete."""
        _add_edges(self._graph, self._graph.get_operations()[self._n_operations :])
        return {**self._chains, _CHAIN: None}

    @collective_manager_ids_used.setter
    def collective_manager_ids_used(self, chains: dict[int, object]) -> None:
        self._chains = chains


def _join_chain(graph: tf.Graph, output: tf.Tensor | tf.Operation) -> None:
    """Note a collective in a graph, and make the graphs around it members of the chain."""
    names = graph._ringar_collectives = getattr(graph, "_ringar_collectives", set())
    names.add(output.name if isinstance(output, tf.Operation) else output.op.name)
    while isinstance(graph, FuncGraph):
        _functions.add(graph.name)
        manager = getattr(graph, "experimental_acd_manager", None)
        if manager is None:  # derived for a gradient
            graph.collective_manager_ids_used = {_CHAIN: None}
        elif type(manager) is AutomaticControlDependencies:
            manager.__class__ = _Dependencies
        graph = graph.outer_graph


def _add_edges(graph: tf.Graph, operations: Sequence[tf.Operation]) -> None:
    """Put calls, conditionals and loops with collectives in the order of the program.

    TensorFlow has done so with the collectives of the graph itself.
    """
    names: set[str] = getattr(graph, "_ringar_collectives", set())
    last: tf.Operation | None = None
    for op in operations:
        if op.name not in names and not _calls_collectives(op):
            continue
        if last is not None and not (op.name in names and last.name in names):
            op._add_control_input(last)
        last = op


def _calls_collectives(op: tf.Operation) -> bool:
    if op.type == "StatefulPartitionedCall":
        return _CHAIN in _attribute(op, "_collective_manager_ids")
    called = [_attribute(op, name) for name in _BRANCHES.get(op.type, ())]
    return any(function.name in _functions for function in tf.nest.flatten(called))


def _attribute(op: tf.Operation, name: str) -> Any:
    try:
        return op.get_attr(name)
    except ValueError:
        return []
