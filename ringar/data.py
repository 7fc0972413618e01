"""Sharding of data: every rank gets a share of the same size.

Elements are dealt out in turn: of `size()` consecutive elements, rank r gets the r-th. The k-th
batches of all ranks together are one contiguous block of the data. One process with a batch size
`size()` times as large would take the same block, so training gives the same results.

Ranks wait for each other in every step, and a rank with one step more would wait forever. Elements
at the end that are too few for all ranks are therefore dropped, or supplemented from the start of
the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

    from ringar.sharding.grid import Grid


__all__ = ["shard"]

from ringar.job.process_sets import ProcessSet, or_all

_DROP, _WRAP = "drop", "wrap"


def shard(
    data: Any,
    *,
    remainder: str = "drop",
    split_batches: bool = False,
    process_set: ProcessSet | None = None,
    grid: Grid | None = None,
) -> Any:
    """Return this rank's share of `data`.

    The order of the data must be the same on every rank: give `Dataset.shuffle` a seed, or shuffle
    after sharding.

    Args:
        data: a `tf.data.Dataset`, whose elements (examples, or batches if it is batched) are dealt
            out; or a NumPy array, or a tuple, list or dict of NumPy arrays, whose rows are dealt
            out. The batch size that you set is one rank's: the global batch is `size()` times as
            large.
        remainder: the treatment of the last elements, if the number of elements is not a multiple
            of the number of ranks. "drop" leaves them out; "wrap" adds elements from the start, so
            that no element is missing and some occur twice.
        split_batches: cut every batch of a batched `tf.data.Dataset` into equal parts instead, one
            for each rank. The global batch is then the batch of the dataset, and a script gives the
            results of one process. Remaining rows of a batch, and batches with fewer rows than
            ranks, are dropped.
        process_set: the ranks that share the data; by default all.
        grid: a `ringar.parallel.Grid`: its model groups share the data, and the ranks of a group
            get the same.

    Returns:
        Data of the same kind, with as many elements, batches or rows on every rank. On one rank,
        `data` itself.

    Raises:
        ValueError: if there is less than one element for each rank, or arrays differ in their
            number of rows.
        TypeError: if `data` is of another type.

    Example:
    ```python
    model.fit(ringar.data.shard(dataset).batch(32))
    x, y = ringar.data.shard((x, y))
    ```
    """
    if remainder not in (_DROP, _WRAP):
        raise ValueError(f'`remainder` must be "drop" or "wrap". Received: remainder={remainder!r}')
    if grid is not None:
        if process_set is not None:
            raise ValueError("`process_set` must be None with `grid`, which has its own.")
        process_set = grid.data_set
    rank, size = _place(process_set)
    if _is_dataset(data):
        if split_batches:
            if remainder != _DROP:
                raise ValueError(
                    '`split_batches=True` needs remainder="drop". Received: remainder="wrap"'
                )
            return data if size == 1 else _split_batches(data, rank, size)
        return data if size == 1 else _shard_dataset(data, rank, size, remainder)
    if split_batches:
        raise TypeError(
            "`split_batches=True` needs a tf.data.Dataset of batches. "
            f"Received: {type(data).__name__}"
        )
    arrays = _leaves(data)
    rows = _check_rows(arrays)
    if size == 1:
        return data
    chosen = _rows_of(rows, rank, size, remainder)
    return _map(data, lambda array: array[chosen])


def _place(process_set: ProcessSet | None) -> tuple[int, int]:
    ranks = or_all(process_set)
    return ranks.rank(), ranks.size()


def _is_dataset(data: Any) -> bool:
    # Importing TensorFlow takes seconds; data of other libraries do not need it.
    if not any(cls.__module__.startswith("tensorflow.") for cls in type(data).__mro__):
        return False
    import tensorflow as tf

    return isinstance(data, tf.data.Dataset)


def _shard_dataset(
    dataset: tf.data.Dataset, rank: int, size: int, remainder: str
) -> tf.data.Dataset:
    import tensorflow as tf

    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if count == tf.data.UNKNOWN_CARDINALITY:
        if remainder == _WRAP:
            # With size-1 more elements, the last round is complete, and no further one is.
            dataset = dataset.concatenate(dataset.repeat().take(size - 1))
        return _deal_rounds(dataset, rank, size)
    _check_count(count, size, remainder)
    missing = -count % size
    if missing and remainder == _WRAP:
        dataset = dataset.concatenate(dataset.repeat().take(missing))
    elif missing:
        dataset = dataset.take(count - count % size)
    return dataset.shard(size, rank)


def _deal_rounds(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """Return element `rank` of each round of `size` elements; incomplete rounds are dropped."""
    import tensorflow as tf

    def own_element(*window: Any) -> tf.data.Dataset:
        nested = window[0] if len(window) == 1 else window
        return tf.data.Dataset.zip(nested).skip(rank).take(1)

    return dataset.window(size, drop_remainder=True).flat_map(own_element)


def _split_batches(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    import tensorflow as tf

    def rows(batch: Any) -> tf.Tensor:
        return tf.shape(tf.nest.flatten(batch)[0])[0]

    def own_part(*batch: Any) -> Any:
        nested = batch[0] if len(batch) == 1 else batch
        part = rows(nested) // size
        return tf.nest.map_structure(lambda tensor: _static_part(tensor, rank, size, part), nested)

    def has_row_per_rank(*batch: Any) -> tf.Tensor:
        return rows(batch) >= size

    for spec in tf.nest.flatten(dataset.element_spec):
        if spec.shape.rank == 0:
            raise ValueError(
                "`split_batches=True` needs a dataset of batches: call `dataset.batch()` before. "
                f"Received: elements of {dataset.element_spec}"
            )
    batched = dataset.filter(has_row_per_rank).map(own_part, num_parallel_calls=tf.data.AUTOTUNE)
    count = int(dataset.cardinality())
    smallest = min((spec.shape[0] or 0) for spec in tf.nest.flatten(dataset.element_spec))
    # A filter loses the number of batches, which the progress bar shows. It is known if no batch
    # can be dropped.
    return (
        batched.apply(tf.data.experimental.assert_cardinality(count))
        if smallest >= size
        else batched
    )


def _static_part(tensor: tf.Tensor, rank: int, size: int, part: tf.Tensor) -> tf.Tensor:
    own = tensor[rank * part : (rank + 1) * part]
    if tensor.shape[0] is not None:
        own.set_shape([tensor.shape[0] // size, *tensor.shape[1:]])
    return own


def _rows_of(count: int, rank: int, size: int, remainder: str) -> slice | np.ndarray:
    _check_count(count, size, remainder)
    if remainder == _DROP:
        # A slice makes the share a view, without a copy.
        return slice(rank, count - count % size, size)
    return np.arange(rank, count + -count % size, size) % count


def _check_count(count: int, size: int, remainder: str) -> None:
    enough = count >= size if remainder == _DROP else count >= 1
    if not enough:
        raise ValueError(
            f"`data` must have at least one element for each of {size} ranks. Received: {count} "
            "elements. Use fewer ranks or smaller batches, or "
            '`remainder="wrap"`, which gives some elements to several ranks.'
        )


def _check_rows(arrays: list[Any]) -> int:
    counts = {array.shape[0] for array in arrays}
    if len(counts) != 1:
        raise ValueError(
            f"All arrays must have the same number of rows. Received: {[a.shape for a in arrays]}"
        )
    return int(counts.pop())


def _leaves(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in _leaves(value)]
    if isinstance(data, tuple | list):
        return [leaf for value in data for leaf in _leaves(value)]
    if not isinstance(data, np.ndarray) or data.ndim == 0:
        raise TypeError(
            "`data` must be a tf.data.Dataset, a NumPy array with rows, or a tuple, list or dict "
            f"of such arrays. Received: {type(data).__name__}"
        )
    return [data]


def _map(data: Any, function: Callable[[np.ndarray], np.ndarray]) -> Any:
    if isinstance(data, dict):
        return {key: _map(value, function) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_map(value, function) for value in data))
    if isinstance(data, tuple | list):
        return type(data)(_map(value, function) for value in data)
    return function(data)
