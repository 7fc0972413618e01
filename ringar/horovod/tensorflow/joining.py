"""Horovod's `join`: ranks without data take part in the steps of the others.

Horovod's coordinator knows which tensors the others reduce. ringar has none: a rank repeats the
reductions of the step that it has taken last, with the optimizer or the tape that is noted here.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringar.collectives import allgather_object, barrier
from ringar.job import place
from ringar.keras import joining, share
from ringar.keras.exchange import Exchange
from ringar.sharding.slots import inner_optimizer

_last: Any = None  # an optimizer, or `Taped`


class Taped:
    """Stand in for the optimizer of a step whose gradients a tape has reduced.

    Args:
        variables: those of the gradients.
        exchange: that of the tape.
    """

    def __init__(self, variables: list[Any], exchange: Exchange) -> None:
        self._trainable_variables = variables
        self.variables: list[Any] = []
        self._exchange = exchange


def note(optimizer: Any) -> None:
    """Note the optimizer, or the tape, of this rank's last step."""
    global _last
    _last = optimizer


def join() -> int:
    """Take part in the steps of other ranks, without data, until all ranks have come here.

    All ranks then have the same values of the variables that the steps train.

    Returns:
        The rank that has come last; of several, the one with the highest number.

    Raises:
        RuntimeError: in a function: eager code only.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("join expected eager code; call it after the loop of steps")
    variables = getattr(inner_optimizer(_last), "_trainable_variables", ())
    if not any(share.record_of(variable) for variable in variables):
        barrier(name="join")  # `fit` joins by itself, and other steps had no gradients
        return place.size() - 1
    without_data = joining.join(_last)
    of_ranks = allgather_object(without_data, name="join")
    return max(rank for rank, steps in enumerate(of_ranks) if steps == min(of_ranks))
