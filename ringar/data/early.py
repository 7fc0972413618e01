"""Sharding of a `tf.data.Dataset` before its maps.

`shard` at the end of a pipeline makes every rank compute all elements and keep some. So it moves
down from the end, past transformations that treat each element, or each batch of consecutive
elements, by itself: `map` of a function without state, `batch`, `prefetch`, `cache` in memory and
`with_options`. They are applied again, to the elements of this rank alone. A function is not traced
again: the new map calls the function that the old one has traced.

`tf.data` does not publish the arguments of a transformation. Where a version of TensorFlow keeps
them elsewhere, the move ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Rebuild = Callable[[tf.data.Dataset], tf.data.Dataset]


def below_maps(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, int, Rebuild]:
    """Return a dataset below the maps of `dataset`, and the way back.

    Returns:
        A dataset, `dataset` itself if no map can be passed; the number of its elements that make
        one element of `dataset`; a function that applies the transformations to a part of it.
    """
    block = 1
    steps: list[Rebuild] = []
    lowest = (dataset, block, len(steps))
    below = dataset
    while (step := _step(below)) is not None:
        rebuild, size = step
        steps.append(rebuild)
        block *= size
        is_map = type(below).__name__ in _MAPS
        below = below._input_dataset
        if is_map:
            lowest = (below, block, len(steps))
    base, block, depth = lowest

    def apply(part: tf.data.Dataset) -> tf.data.Dataset:
        for rebuild in reversed(steps[:depth]):
            part = rebuild(part)
        return part

    return base, block, apply


def _step(dataset: tf.data.Dataset) -> tuple[Rebuild, int] | None:
    """Return the function that applies the last transformation again, and its block length."""
    find = _STEPS.get(type(dataset).__name__)
    try:
        return None if find is None else find(dataset)
    except AttributeError:
        return None


def _map(dataset: Any) -> tuple[Rebuild, int] | None:
    function = dataset._map_func.function
    specs = tf.nest.flatten((dataset._input_dataset.element_spec, dataset.element_spec))
    if function.function_def.signature.is_stateful or not all(
        isinstance(spec, tf.TensorSpec) for spec in specs
    ):
        return None

    def call(*element: Any) -> Any:
        results = function(*tf.nest.flatten(element))
        return tf.nest.pack_sequence_as(dataset.element_spec, tf.nest.flatten(results))

    options = _parallelism(dataset)
    return lambda part: part.map(call, **options), 1


def _batch(dataset: Any) -> tuple[Rebuild, int]:
    size, drop = int(dataset._batch_size), bool(dataset._drop_remainder)
    options = _parallelism(dataset)
    return lambda part: part.batch(size, drop_remainder=drop, **options), size


def _parallelism(dataset: Any) -> dict[str, Any]:
    if "Parallel" not in type(dataset).__name__:
        return {}
    return {
        "num_parallel_calls": int(dataset._num_parallel_calls),
        "deterministic": {"true": True, "false": False}.get(dataset._deterministic),
    }


def _prefetch(dataset: Any) -> tuple[Rebuild, int]:
    buffer = int(dataset._buffer_size)
    return lambda part: part.prefetch(buffer), 1


def _cache(dataset: Any) -> tuple[Rebuild, int] | None:
    # The ranks of a host would write different elements to one file.
    return None if dataset._filename.numpy() else (lambda part: part.cache(), 1)


def _options(dataset: Any) -> tuple[Rebuild, int]:
    options = dataset.options()
    return lambda part: part.with_options(options), 1


_MAPS = ("_MapDataset", "_ParallelMapDataset")
_STEPS: dict[str, Callable[[Any], tuple[Rebuild, int] | None]] = {
    **dict.fromkeys(_MAPS, _map),
    "_BatchDataset": _batch,
    "_ParallelBatchDataset": _batch,
    "_PrefetchDataset": _prefetch,
    "CacheDataset": _cache,
    "_OptionsDataset": _options,
}
