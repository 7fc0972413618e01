"""`ringar.data.shard`: this rank's share of data of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from ringar.data import arrays, marks
from ringar.data.deal import DEFAULT_REMAINDER, REMAINDERS, Deal, Remainder
from ringar.job.process_sets import ProcessSet, or_all

if TYPE_CHECKING:
    from ringar.sharding.grid import Grid

Data = TypeVar("Data")


def shard(
    data: Data,
    *,
    remainder: Remainder = DEFAULT_REMAINDER,
    split_batches: bool = False,
    process_set: ProcessSet | None = None,
    grid: Grid | None = None,
) -> Data:
    """Return this rank's share of `data`.

    The order of the data must be the same on every rank: shuffle with a seed, or after sharding.

    Args:
        data: what to deal out, in turn. The batch size that you set is one rank's: the global batch
            is `size()` times as large.

            - `tf.data.Dataset`: its elements (examples, or batches if it is batched).
            - `keras.utils.PyDataset`: its batches. The share is a `PyDataset` with the same
              `workers`. `on_epoch_begin` and `on_epoch_end` are passed on.
            - NumPy array, tensor, sparse matrix of SciPy, pandas DataFrame or Series, or a tuple,
              list or dict of these: its rows. None within a structure stays None.
        remainder: the treatment of the last elements, if the number of elements is not a multiple
            of the number of ranks. "keep", the default, gives each to one rank: ranks differ by one
            element at most, and perhaps by one step, which `fit` and `ringar.join` allow. "drop"
            leaves them out. "wrap" adds elements from the start, so that no element is missing and
            some occur twice.
        split_batches: cut every batch of a batched dataset instead, into one part for each rank.
            The global batch is then the batch of the dataset, and a script gives the results of
            one process. With "drop" parts are equal: remaining rows of a batch, and batches with
            fewer rows than ranks, are dropped. With "keep" parts differ by one row at most, and a
            rank leaves out the last batch if that has no row for it; others with fewer rows than
            ranks are an error. For a `PyDataset`, every rank loads whole batches.
        process_set: the ranks that share the data; by default all.
        grid: a `ringar.parallel.Grid`: its model groups share the data, and the ranks of a group
            get the same.

    Returns:
        Data of the same kind. With "drop" and "wrap" every rank has equally many elements, batches
        or rows. On one rank, `data` itself.

    Raises:
        ValueError: if there is less than one element for each rank, if arrays differ in their
            number of rows, or if this rank is not in `process_set`.
        TypeError: if `data` is of another type, or has components that cannot be cut.

    Examples:
        What rank 0 of two gets:

        >>> x, y = ringar.data.shard((np.arange(5), np.arange(5) > 2))
        >>> x
        array([0, 2, 4])
        >>> dataset = tf.data.Dataset.range(6)
        >>> list(ringar.data.shard(dataset).batch(2).as_numpy_iterator())
        [array([0, 2]), array([4])]
        >>> parts = ringar.data.shard(dataset.batch(4), split_batches=True)
        >>> list(parts.as_numpy_iterator())
        [array([0, 1]), array([4])]

    Shard a `tf.data.Dataset` before expensive transformations, so that a rank computes its own
    share only. `shard` does so by itself where the result is provably the same: it moves below
    `map` without side effects or random numbers, `batch`, `prefetch`, and `cache` in memory.
    """
    if remainder not in REMAINDERS:
        one_of = ", ".join(f'"{name}"' for name in REMAINDERS)
        raise ValueError(f"`remainder` must be one of {one_of}. Received: remainder={remainder!r}")
    if split_batches and remainder == "wrap":
        raise ValueError(
            '`split_batches=True` needs remainder="drop" or "keep". Received: remainder="wrap"'
        )
    if grid is not None:
        if process_set is not None:
            raise ValueError("`process_set` must be None with `grid`, which has its own.")
        process_set = grid.data_set
    deal = Deal(*_place(process_set), remainder)
    order: marks.Order = "parts" if split_batches else "turn"
    # Importing TensorFlow and Keras takes seconds; data of other libraries do not need it.
    if arrays.is_instance(data, "tensorflow", "data.Dataset"):
        from ringar.data import datasets, parts

        if deal.size == 1:
            return data
        part = (parts.split if split_batches else datasets.deal)(data, deal)
        return cast(Data, marks.mark(part, order))
    if arrays.is_instance(data, "keras", "utils.PyDataset"):
        from ringar.data import py_datasets

        if deal.size == 1:
            return data
        kind = py_datasets.Parts if split_batches else py_datasets.Share
        return cast(Data, marks.mark(kind(data, deal), order))
    rows = arrays.rows_of(data)
    if split_batches:
        raise TypeError(
            "`split_batches=True` needs a tf.data.Dataset or a keras.utils.PyDataset of batches. "
            f"Received: {type(data).__name__}"
        )
    if deal.size == 1:
        return data
    return cast(Data, marks.mark(arrays.take(data, deal.rows(rows)), order))


def _place(process_set: ProcessSet | None) -> tuple[int, int]:
    ranks = or_all(process_set)
    if ranks.rank() < 0:
        raise ValueError(
            "A rank must be in `process_set` to get a share: call `ringar.data.shard` on the "
            f"members only. Received: {ranks}, on a rank that is not in it"
        )
    return ranks.rank(), ranks.size()
