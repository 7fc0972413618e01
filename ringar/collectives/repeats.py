"""Calls outside of graphs that a program repeats, such as those of each step.

The first call with some arguments checks and describes them. It leaves a function that runs the
collective, for the calls that follow: for a NumPy array a prepared call of the engine, for a tensor
the op with its spec, and for a small one the prepared call, too (ringar/collectives/eager.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.collectives.call import REMEMBERED, Call
from ringar.collectives.collective import COLLECTIVES, NO_SPLITS
from ringar.collectives.dtypes import Array
from ringar.job import native, place, tensorflow
from ringar.job.native_repeat import Repeat

if TYPE_CHECKING:
    import tensorflow as tf


def find(value: Array | None, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return the function of the value that runs a collective; None if it is not remembered.

    Args:
        value: the user's array or tensor; None for a collective without arrays.
        arguments: the name of the collective and all its other arguments.
    """
    try:
        repeat = place.repeats.get(_key(value, arguments))
    except TypeError:  # an argument without a hash
        return None
    return repeat if repeat and tensorflow.is_eager() else None


def remember(value: Array | None, arguments: tuple[Any, ...], call: Call) -> None:
    """Remember how a call ran, for `find`.

    Args:
        value: the array or tensor that reached the engine.
        arguments: as of `find`; empty for a call that cannot be repeated.
        call: the call of these arguments.
    """
    if arguments:
        keep(_key(value, arguments), lambda: _repeat(call, value))


def keep(key: tuple[Any, ...], make: Callable[[], Callable[..., Any]]) -> None:
    """Keep what `make` returns under a key, if calls are run now and the key has a hash."""
    if native.absence() or not tensorflow.is_eager():
        return
    try:
        hash(key)
    except TypeError:
        return
    if len(place.repeats) >= REMEMBERED:
        place.repeats.clear()
    place.repeats[key] = make()


def _key(value: Array | None, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if value is None:
        return arguments
    if type(value) is np.ndarray:
        return value.dtype, value.shape, value.flags.c_contiguous, arguments
    # Of an eager tensor; its `dtype` takes longer, and so does the hash of that.
    dtype = getattr(value, "_datatype_enum", None)
    return type(value), dtype and dtype(), arguments


def _repeat(call: Call, value: Any) -> Callable[..., Any]:
    if value is None:
        return native.Prepared(call.spec(), [], []).run
    if isinstance(value, np.ndarray):
        return _prepare(call, value)
    from ringar.collectives.eager import with_short_way

    collective = COLLECTIVES[call.collective]
    op, spec = native.op(call.collective, wait=True), call.spec(value.dtype.name)

    def run(tensor: tf.Tensor) -> tf.Tensor:
        result = op(*collective.arguments([tensor], NO_SPLITS), spec=spec)
        while not isinstance(result, type(tensor)):
            result = result[0]  # the results of an op come before its other outputs
        return result

    limit = native.LEAST_POOLED // collective.output_shape(call, [1])[0]
    return with_short_way(run, functools.partial(_prepare, call), limit)


def _prepare(call: Call, array: np.ndarray) -> Repeat:
    collective = COLLECTIVES[call.collective]
    return Repeat(
        call.spec(array.dtype.name),
        array.dtype,
        array.shape,
        collective.output_shape(call, array.shape),
        ranks_may_differ=collective.ranks_may_differ,
    )
