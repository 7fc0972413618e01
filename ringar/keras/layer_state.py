"""The state of layers beside their weights: vocabularies, statistics, constants, arguments.

`adapt` of a preprocessing layer leaves vocabularies in tables and statistics in tensors, which no
broadcast of weights reaches. With those of a rank's own data, ranks train one model on inputs that
mean different things. The ranks therefore compare digests of

- the vocabulary of a layer that has one, and its IDF weights
- arrays among the attributes of a layer; tensors, too, if the layer has `adapt`. Tensors of other
  layers may be results that a call has left there.
- the config of a layer: `bin_boundaries`, `salt`
- the values of closure and globals that a `Lambda` uses

Names, seeds and the code of functions may differ. Seeds of random layers must, and weights that an
initializer has drawn are broadcast. Layers on a grid have parts of their own. Inputs may have a
batch size.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.collectives import allgather_object
from ringar.collectives.call import Call
from ringar.errors import MismatchError
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras.state import listing

_CALL = Call("allgather_object", name="state of layers")
_NOT_COMPARED = {"name", "seed", "code", "batch_shape", "build_config", "trainable"}

_VALUES = (bool, int, float, complex, str, list, tuple, dict, np.ndarray, np.generic, tf.Tensor)


def check(model: keras.Model, process_set: ProcessSet | None = None) -> None:
    """Check that all ranks hold the same state beside the weights of layers. Collective.

    Args:
        model: a model, built or not.
        process_set: the ranks that train together; by default all.

    Raises:
        MismatchError: on every rank, with the layers whose state differs.
    """
    ranks = or_all(process_set)
    if ranks.size() == 1:
        return
    layers = list(_layers(model))
    report = [(type(layer).__name__, dict(_digests(layer))) for layer in layers]
    everyone = allgather_object(report, name=_CALL.name, process_set=process_set)
    kinds = [[kind for kind, _ in of_rank] for of_rank in everyone]
    if any(of_rank != kinds[0] for of_rank in kinds):
        counts = ", ".join(f"{len(k)} (rank {r})" for r, k in zip(ranks.ranks, kinds, strict=True))
        raise MismatchError(
            _CALL.refusal(
                "the same layers on every rank",
                f"{counts} layers, or other classes of layers",
                "Build the same model everywhere.",
            )
        )
    of_layers = zip(*([state for _, state in of_rank] for of_rank in everyone), strict=True)
    parts = [(layer, _differences(states)) for layer, states in zip(layers, of_layers, strict=True)]
    if any(names for _, names in parts):
        raise MismatchError(_refusal([(layer, names) for layer, names in parts if names]))


def refresh(model: keras.Model) -> None:
    """Compute anew what layers derive from weights that have been received.

    `Normalization` computes with tensors that it makes of its weights.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization) and layer.built:
            layer.finalize_state()


def _differences(states: tuple[dict[str, int], ...]) -> list[str]:
    """Return the parts of a layer's state whose digests differ between ranks."""
    names = sorted(set().union(*states))
    return [name for name in names if len({state.get(name) for state in states}) > 1]


def _refusal(differences: list[tuple[keras.Layer, list[str]]]) -> str:
    words = [
        f'{", ".join(parts)} of layer "{layer.name}" ({type(layer).__name__})'
        for layer, parts in differences
    ]
    is_adapted = any(hasattr(layer, "adapt") for layer, _ in differences)
    adapt = (
        "Adapt a layer to the rows of all ranks: ringar.data.adapt(layer, data) on every rank, "
        "with the rank's own data; or layer.adapt(data) on every rank, with the same data. Load "
        "its file on every rank. "
    )
    return _CALL.refusal(
        "layers that hold the same on every rank beside their weights",
        f"others: {listing(words, '; ')}",
        f"{adapt if is_adapted else ''}Give layers the same arguments and constants on every rank. "
        "Where they are meant to differ, pass check=False to ringar.callbacks.Distributed.",
    )


def _layers(model: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers that are compared, without those that are parts of others."""
    lookups = set()
    for layer in model._flatten_layers():
        lookups.add(id(getattr(layer, "_lookup_layer", None)))
        if getattr(layer, "grid", None) is None and id(layer) not in lookups:
            yield layer


def _digests(layer: keras.Layer) -> Iterator[tuple[str, int]]:
    """Yield each part of a layer's state, in words, and its digest."""
    if hasattr(layer, "get_vocabulary"):
        yield "a vocabulary", _digest(layer.get_vocabulary())
        lookup = getattr(layer, "_lookup_layer", layer)
        yield "IDF weights", _digest(getattr(lookup, "idf_weights_const", None))
    is_adapted = hasattr(layer, "adapt")
    for name, value in sorted(vars(layer).items()):
        if isinstance(value, np.ndarray) or (is_adapted and isinstance(value, tf.Tensor)):
            yield f"`{name}`", _digest(value)
    if isinstance(layer, keras.layers.Lambda):
        yield "values that `function` uses", _digest(_values_of(layer.function))
    if not isinstance(layer, keras.Model):
        for name, value in _config(layer).items():
            if name not in _NOT_COMPARED:
                yield f"argument `{name}`", _digest(value)


def _config(layer: keras.Layer) -> dict[str, Any]:
    try:
        return dict(layer.get_config())
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return {}  # a layer that cannot be saved


def _values_of(function: Any) -> dict[str, Any]:
    """Return the values of a function's closure and globals, without objects and modules."""
    if not inspect.isfunction(function):
        return {}
    variables = inspect.getclosurevars(function)
    return {
        k: v
        for k, v in {**variables.globals, **variables.nonlocals}.items()
        if isinstance(v, _VALUES)
    }


def _digest(value: Any) -> int:
    return functools.reduce(lambda crc, part: zlib.crc32(part, crc), _bytes(value), 0)


def _bytes(value: Any) -> Iterator[bytes]:
    """Yield a value of a config as bytes that are the same in all processes."""
    if isinstance(value, dict):
        for key in sorted(set(value) - _NOT_COMPARED, key=str):
            yield f"{key}=".encode()
            yield from _bytes(value[key])
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}]".encode()
        for item in value:
            yield from _bytes(item)
    elif isinstance(value, np.ndarray | np.generic | tf.Tensor):
        array = np.asarray(value)
        yield f"{array.dtype}{array.shape}".encode()
        yield repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, str | int | float | complex | None):
        yield repr(value).encode()
    elif hasattr(value, "get_config"):
        yield type(value).__name__.encode()
        yield from _bytes(value.get_config())
    else:  # whose text may have an address
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        yield str(getattr(value, "__qualname__", "")).encode()
