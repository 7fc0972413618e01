"""`evaluate` and `predict` of models whose weights are sharded.

Every rank gathers weights for its batches, and needs all other ranks for it. So ranks that have
fewer batches take part in the gatherings of the others until all have come to the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from ringar.job import place
from ringar.job.process_sets import or_all
from ringar.keras.zero.passes import FIT, FORWARD, ask
from ringar.keras.zero.session import SESSION, Meeting
from ringar.keras.zero.weight_slice import is_sharded, slice_of


@contextmanager
def together(model: keras.Model, function: str = "predict") -> Iterator[None]:
    """Return a context for forward passes, of which ranks may have different numbers.

    Args:
        model: the model; if its weights are sharded, all ranks must come here.
        function: which function runs them: "evaluate" or "predict".
    """
    if SESSION.scope.meeting is not None or not any(map(is_sharded, model.weights)):
        yield
        return
    with SESSION.within(meeting=Meeting(), function=(model, function)):
        yield
        leave(model)


def leave(model: keras.Model) -> None:
    """Take part in the forward passes of the others, at the end of this rank's; once in a context.

    Args:
        model: the model.

    Raises:
        ValueError: this rank has never had a batch itself.
    """
    meeting = SESSION.scope.meeting
    if meeting is None or meeting.has_ended:
        return
    meeting.has_ended = True
    ranks = slice_of(next(filter(is_sharded, model.weights))).process_set
    executed, function = SESSION.scope.function or (model, "")
    plans = SESSION.plans.get(executed, {})
    # The plan of the function that runs, or of another forward pass, or of training.
    name = min(plans, key=lambda name: (name == FIT, name != function), default=None)
    while round(float(ask(ranks, True, FORWARD)[1])) < or_all(ranks).size():
        if name is None:
            raise ValueError(
                f"rank {place.rank()} | weights that are sharded: expected at least one batch on "
                "every rank, received none on this one, which therefore does not know what the "
                "others gather; give it one"
            )
        for gather in plans[name].gathers:
            gather()


def ending_together(original: Any) -> Any:
    """Let `evaluate` and `predict` end on all ranks together."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with together(self, original.__name__):
            return original(self, *args, **kwargs)

    return run


def noting_plan(original: Any) -> Any:
    """Note the plan of a function that is traced for one batch here, and used again later."""
    function = original.__name__.replace("_on_batch", "").replace("test", "evaluate")

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with SESSION.within(function=(self, function)):
            return original(self, *args, **kwargs)

    return run


def making_anew(original: Any) -> Any:
    """Make a function again if weights have been sharded, or made whole, since it was made."""
    name = original.__name__

    def make(self: Any, force: bool = False) -> Any:
        are_sharded = any(map(is_sharded, self.weights))
        states = SESSION.sharded.setdefault(self, {})
        force = force or states.get(name, False) is not are_sharded
        states[name] = are_sharded
        return original(self, force)

    return make


def naming_slices(original: Any) -> Any:
    """Let optimizers know a sharded variable by the name of its slice."""

    def key(self: Any, variable: Any) -> Any:
        return slice_of(variable)._unique_id if is_sharded(variable) else original(self, variable)

    return key
