"""Models whose weights are sharded, in `evaluate` and `predict`: what Keras' functions must know.

Every rank gathers weights for its batches, and needs all other ranks for it. So ranks that have
fewer batches take part in the gatherings of the others until all have come to the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

from ringar.job.process_sets import or_all
from ringar.keras import passes
from ringar.sharding.sharded_variable import is_sharded, slice_of

_IS_CUT = "_ringar_functions_of_slices"


class _Passes:
    has_left = False


_passes: ContextVar[_Passes | None] = ContextVar("passes", default=None)


@contextmanager
def together(model: keras.Model, function: str = "predict") -> Iterator[None]:
    """Return a context for forward passes, of which ranks may have different numbers.

    Args:
        model: the model; if its weights are sharded, all ranks must come here.
        function: which function runs them: "evaluate" or "predict".
    """
    if _passes.get() is not None or not any(map(is_sharded, model.weights)):
        yield
        return
    token = _passes.set(_Passes())
    try:
        with passes.forwards_of(model, function):
            yield
            leave(model)
    finally:
        _passes.reset(token)


def leave(model: keras.Model) -> None:
    """Take part in the forward passes of the others, at the end of this rank's; once in a context.

    Args:
        model: the model.
    """
    own = _passes.get()
    if own is None or own.has_left:
        return
    own.has_left = True
    its = slice_of(next(filter(is_sharded, model.weights)))
    passes.join_forward(its.process_set, or_all(its.process_set).size())


def ending_together(original: Any) -> Any:
    """Let `evaluate` and `predict` end on all ranks together."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with together(self, original.__name__):
            return original(self, *args, **kwargs)

    return run


def noting_plan(original: Any) -> Any:
    """Note the plan of a function that is traced for one batch here, and used by others later."""
    function = original.__name__.replace("_on_batch", "").replace("test", "evaluate")

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with passes.forwards_of(self, function):
            return original(self, *args, **kwargs)

    return run


def making_anew(original: Any) -> Any:
    """Make a function again that has read whole weights, before they were sharded, or slices."""
    name = original.__name__

    def make(self: Any, force: bool = False) -> Any:
        is_cut, known = any(map(is_sharded, self.weights)), vars(self).setdefault(_IS_CUT, {})
        force = force or known.get(name, False) is not is_cut
        known[name] = is_cut
        return original(self, force)

    return make


def naming_slices(original: Any) -> Any:
    """Let optimizers know a sharded variable by the name of its slice."""

    def key(self: Any, variable: Any) -> Any:
        return slice_of(variable)._unique_id if is_sharded(variable) else original(self, variable)

    return key
