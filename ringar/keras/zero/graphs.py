"""The graphs in which a layer may read whole weights.

A function that a layer calls reads the weights of the layer, which are tensors while the layer is
called. TensorFlow would capture the tensors of the first call, and use them in all later ones. So a
`tf.function` that reads them is refused. Graphs of loops and branches belong to one call, and
capture tensors as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_v2_func_graphs as branch_graphs

from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.keras.zero.session import SESSION

_OF_A_CALL = (
    branch_graphs.CondBranchFuncGraph,
    branch_graphs.WhileBodyFuncGraph,
    branch_graphs.WhileCondFuncGraph,
)


def graph() -> Any:
    """Return the graph under construction; None in eager code."""
    return None if tf.executing_eagerly() else tf_ops.get_default_graph()


def is_of_a_call(graph: Any) -> bool:
    """Return whether a graph is the body of a loop or a branch, or the condition of a loop."""
    return isinstance(graph, _OF_A_CALL)


def function_graph() -> Any:
    """Return the graph of the function under construction, loops and branches left out."""
    function = graph()
    while is_of_a_call(function):
        function = function.outer_graph
    return function


def read(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Return a whole weight in the graph under construction.

    Args:
        tensor: the weight.
        name: its path.

    Raises:
        UnsupportedError: a `tf.function` inside a layer reads the weight.
    """
    function = function_graph()
    if not isinstance(function, func_graph.FuncGraph) or function is getattr(tensor, "graph", None):
        return tensor
    # The gradient of a function captures tensors of the function's graph as usual.
    if function.name.startswith("__backward"):
        return tensor
    raise UnsupportedError(
        f'rank {place.rank()} | shard="weights": expected a layer whose call uses no tf.function, '
        f"received one whose tf.function reads {name}; call its code without tf.function, or use "
        'shard="gradients"'
    )


def tracing_anew(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let TensorFlow trace functions that a layer calls anew when other weights are sharded.

    A function that has read a whole weight must not be used once the weight is sharded.
    """

    def make_function_context(*args: Any, **kwargs: Any) -> Any:
        context = original(*args, **kwargs)
        if SESSION.scope.call is None:
            return context
        return context._replace(scope_type=(context.scope_type, SESSION.storages))

    return make_function_context
