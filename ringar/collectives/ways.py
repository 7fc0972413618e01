"""The way of a call's values to the engine: that of NumPy arrays, or one of those of tensors."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar import hooks
from ringar.collectives import repeats
from ringar.collectives.call import Call, by_dtype
from ringar.collectives.collective import COLLECTIVES, Collective, run_arrays
from ringar.collectives.dtypes import Array
from ringar.job import tensorflow

if TYPE_CHECKING:
    import tensorflow as tf

tensorflow.when_loaded(
    "AutoGraph", functools.partial(hooks.install, "code of ringar in a tf.function")
)


def define(name: str, collective: Collective) -> None:
    """Register a collective under its name, and its gradient with TensorFlow once that is there."""
    COLLECTIVES[name] = collective

    def register() -> None:
        from ringar.collectives.tensors import register_gradient

        register_gradient(name, collective)

    tensorflow.when_loaded(f"gradient of {name}", register)


def run(call: Call, values: Sequence[Any], arguments: tuple[Any, ...] = ()) -> list[Any]:
    """Run a collective on the result of `values_of`; return the results in the same order.

    Tensors of one dtype travel together, in the order in which the dtypes first appear. A call of
    one value is remembered by the user's `arguments`, if they are given.
    """
    run_group: Any = run_arrays
    if not is_numpy(values):
        from ringar.collectives.tensors import run_tensors as run_group
    if len(values) == 1:
        result = run_group(call, values)[0]
        repeats.remember(values[0], arguments, call)
        return [result]
    results: list[Any] = [None] * len(values)
    for places in by_dtype(value.dtype for value in values):
        outputs = run_group(call, [values[i] for i in places])[: len(places)]
        for place, output in zip(places, outputs, strict=True):
            results[place] = output
    return results


def is_numpy(values: Sequence[Array]) -> bool:
    """Return whether all values, and so the results, are NumPy arrays or scalars."""
    return all(isinstance(value, (np.ndarray, np.generic)) for value in values)


def values_of(tensors: Iterable[Array], function: str) -> list[Any]:
    """Return a user's values as tensors, or as NumPy arrays if all of them are NumPy arrays.

    Arrays are C-contiguous and in this machine's byte order; scalars have no dimension.

    Args:
        tensors: the user's values.
        function: the name of the collective, for errors.

    Raises:
        TypeError: an array is on a GPU; TensorFlow would convert it number by number. Or it is a
            masked array, whose mask no collective knows.
    """
    tensors = list(tensors)
    if all(map(_is_plain, tensors)):
        return tensors
    if any(isinstance(tensor, np.ma.MaskedArray) for tensor in tensors):
        raise TypeError(
            f"ringar.{function} expected arrays without a mask; received a masked array. Pass "
            "array.filled(value), and np.ma.getmaskarray(array) by a second call where the ranks "
            "need the mask."
        )
    if not is_numpy(tensors):
        return [_tensor_of(tensor, function) for tensor in tensors]
    return [np.asarray(array, array.dtype.newbyteorder("="), order="C") for array in tensors]


def _is_plain(value: Array) -> bool:
    """Return whether a value is an array that the engine takes as it is."""
    return type(value) is np.ndarray and value.flags.c_contiguous and value.dtype.isnative


def _tensor_of(value: Array, function: str) -> tf.Tensor:
    if hasattr(value, "__cuda_array_interface__"):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        remedy = (
            f"ringar.cupy.{function} takes it"
            if function in COLLECTIVES
            else "copy it to the host, for example with cupy.asnumpy"
        )
        raise TypeError(
            f"ringar.{function} expected TensorFlow tensors or NumPy arrays; received a {kind}, "
            f"which is on a GPU: {remedy}."
        )
    tf = tensorflow.load()
    # Most values are tensors already, and isinstance is faster than convert_to_tensor.
    return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
