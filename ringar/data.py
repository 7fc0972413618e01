"""Every rank its share of the data, and every rank equally much of it.

Elements are dealt out like cards: of each `size()` consecutive ones, rank r gets the r-th. The k-th
batches of all ranks are then together one contiguous block of the data, the batch that one process
would take with a batch size `size()` times as large, and training gives what that process would
give.

Ranks wait for each other in every step, so that one with a step more than the others would wait for
ever. What is left at the end and does not go round is therefore dropped, or filled up from the
start of the data: nobody gets more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["shard"]

from ringar.job.process_sets import or_all

_DROP, _WRAP = "drop", "wrap"


def shard(
    data: Any,
    *,
    remainder: str = "drop",
    split_batches: bool = False,
    process_set: Any = None,
    grid: Any = None,
) -> Any:
    """Return this rank's share of `data`.

    The order of the data must be the same on every rank: give `Dataset.shuffle` a seed, or shuffle
    after sharding.

    Args:
        data: a `tf.data.Dataset`, whose elements (examples, or batches if it is batched) are dealt
            out; or a NumPy array, or a tuple, list or dict of NumPy arrays, whose rows are dealt
            out. The batch size that you set is one rank's: the global batch is `size()` times as
            large.
        remainder: what becomes of the last elements if their number is not a multiple of the number
            of ranks. "drop" leaves them out; "wrap" fills them up with elements from the start, so
            that no element is missed and some are seen twice.
        split_batches: cut every batch of a batched `tf.data.Dataset` into equal parts instead, one
            for each rank. The global batch is then the batch of the dataset, and a script gives the
            numbers that it gave on one process. Rows that do not go round, and batches with fewer
            rows than ranks, are dropped.
        process_set: the ranks that share the data; by default all.
        grid: a `ringar.parallel.Grid`: its model groups share the data, and the ranks of a group
            get the same.

    Returns:
        As `data`, with as many elements, batches or rows on every rank. On one rank, `data` itself.

    Raises:
        ValueError: if there is less than one element for each rank, or arrays differ in their
            number of rows.
        TypeError: if `data` is something else.

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


def _place(process_set: Any) -> tuple[int, int]:
    ranks = or_all(process_set)
    return ranks.rank(), ranks.size()


def _is_dataset(data: Any) -> bool:
    # What is no TensorFlow object is told from one without importing TensorFlow.
    if not any(cls.__module__.startswith("tensorflow.") for cls in type(data).__mro__):
        return False
    import tensorflow as tf

    return isinstance(data, tf.data.Dataset)


def _shard_dataset(dataset: Any, rank: int, size: int, remainder: str) -> Any:
    import tensorflow as tf

    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if count == tf.data.UNKNOWN_CARDINALITY:
        if remainder == _WRAP:
            # With size-1 elements more, every round that was begun is complete and no other one can
            # be.
            dataset = dataset.concatenate(dataset.repeat().take(size - 1))
        return _deal_rounds(dataset, rank, size)
    _check_count(count, size, remainder)
    missing = -count % size
    if missing and remainder == _WRAP:
        dataset = dataset.concatenate(dataset.repeat().take(missing))
    elif missing:
        dataset = dataset.take(count - count % size)
    return dataset.shard(size, rank)


def _deal_rounds(dataset: Any, rank: int, size: int) -> Any:
    """Return element `rank` of each round of `size`, passed on when the whole round is there."""
    import tensorflow as tf

    def own_element(*window: Any) -> Any:
        nested = window[0] if len(window) == 1 else window
        return tf.data.Dataset.zip(nested).skip(rank).take(1)

    return dataset.window(size, drop_remainder=True).flat_map(own_element)


def _split_batches(dataset: Any, rank: int, size: int) -> Any:
    import tensorflow as tf

    def rows(batch: Any) -> Any:
        return tf.shape(tf.nest.flatten(batch)[0])[0]

    def own_part(*batch: Any) -> Any:
        nested = batch[0] if len(batch) == 1 else batch
        part = rows(nested) // size
        return tf.nest.map_structure(lambda tensor: _static_part(tensor, rank, size, part), nested)

    def goes_round(*batch: Any) -> Any:
        return rows(batch) >= size

    for spec in tf.nest.flatten(dataset.element_spec):
        if spec.shape.rank == 0:
            raise ValueError(
                "`split_batches=True` needs a dataset of batches: call `dataset.batch()` before. "
                f"Received: elements of {dataset.element_spec}"
            )
    batched = dataset.filter(goes_round).map(own_part, num_parallel_calls=tf.data.AUTOTUNE)
    count = int(dataset.cardinality())
    smallest = min((spec.shape[0] or 0) for spec in tf.nest.flatten(dataset.element_spec))
    # A filter loses the number of batches, which the progress bar wants; where every batch goes
    # round it is known.
    return (
        batched.apply(tf.data.experimental.assert_cardinality(count))
        if smallest >= size
        else batched
    )


def _static_part(tensor: Any, rank: int, size: int, part: Any) -> Any:
    own = tensor[rank * part : (rank + 1) * part]
    if tensor.shape[0] is not None:
        own.set_shape([tensor.shape[0] // size, *tensor.shape[1:]])
    return own


def _rows_of(count: int, rank: int, size: int, remainder: str) -> Any:
    _check_count(count, size, remainder)
    if remainder == _DROP:
        # A slice: the share is a view, and no row is copied.
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


def _map(data: Any, function: Any) -> Any:
    if isinstance(data, dict):
        return {key: _map(value, function) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_map(value, function) for value in data))
    if isinstance(data, tuple | list):
        return type(data)(_map(value, function) for value in data)
    return function(data)
