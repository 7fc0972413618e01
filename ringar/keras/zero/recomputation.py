"""Functions with gradients of their own, which read whole weights again in the backward pass.

The gradient function of `tf.recompute_grad` and of `tf.custom_gradient` runs after the call of its
layer. It sees the weights that its forward function has seen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ringar.keras.zero import graphs
from ringar.keras.zero.session import SESSION
from ringar.keras.zero.whole_weight import WholeWeight


def seeing_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let gradient functions see the weights of their forward functions."""

    def decorate(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        in_sight = SESSION.scope.weights
        if in_sight is None:
            return original(function, args, kwargs)
        graph = graphs.graph()

        @functools.wraps(function)
        def forward(*values: Any, **options: Any) -> Any:
            result, gradient = function(*values, **options)

            @functools.wraps(gradient)
            def backward(*upstream: Any, **options: Any) -> Any:
                if variables := options.get("variables"):
                    options["variables"] = [_of_graph(graph, v) for v in variables]
                weights = [w for w in options.get("variables", ()) if isinstance(w, WholeWeight)]
                with SESSION.within(weights={**in_sight, **{id(w.variable): w for w in weights}}):
                    return gradient(*upstream, **options)

            backward.__signature__ = inspect.signature(gradient)  # type: ignore[attr-defined]
            return result, backward

        return original(forward, args, kwargs)

    return decorate


def _of_graph(graph: Any, variable: Any) -> Any:
    """Return a weight as the forward function has read it, in its graph."""
    if not isinstance(variable, WholeWeight):
        return variable
    with nullcontext() if graph is None else graph.as_default():
        return WholeWeight(variable.variable, variable.handle)
