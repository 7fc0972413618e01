"""`predict`: every rank predicts its share of the data, and all predictions are collected.

Rows of arrays, and batches whose number is known, are shared in contiguous blocks, in rank order.
Batches of unknown number are dealt out in turn, and ranks tell each other how many rows each batch
had, to put the predictions in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from ringar.collectives import allgather, allgather_object, alltoall
from ringar.collectives.agree import together
from ringar.collectives.call import Call
from ringar.collectives.dtypes import Arrays
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import ragged
from ringar.keras.metrics import ranks_with_data
from ringar.keras.zero import forward

_CALL = Call("ringar.predict")
_NAME = "predict"
_UNKNOWN = -1


def predict(
    model: keras.Model,
    data: Arrays | tf.data.Dataset | keras.utils.PyDataset,
    *,
    batch_size: int | None = None,
    root_rank: int | None = None,
    verbose: int | str = 0,
    process_set: ProcessSet | None = None,
) -> Any:
    """Predict `data` with all ranks, a share each, and return all predictions in order.

    Collective: every rank passes the same data. Shares may differ by a row or a batch, and a rank
    may have none. So the model must not communicate, except with its model group on a grid.

    Args:
        model: a Keras model with the same weights on every rank.
        data: a NumPy array or tensor, or a tuple, list or dict of them, of any number of rows; or a
            batched `tf.data.Dataset` or a `keras.utils.PyDataset`, of any number of batches. All of
            it, not a rank's share.
        batch_size: the rows of a batch of one rank, for arrays and tensors; 32 by default.
        root_rank: the one rank that gets the predictions; by default all ranks get them.
        verbose: as for `keras.Model.predict`, on the first rank. The others print nothing, and no
            rank does for a dataset of unknown length.
        process_set: the ranks that predict together; by default all. If the model is cut by a grid,
            the model groups share the data.

    Returns:
        The value of `model.predict(data)`: NumPy arrays in the structure of the model's outputs; a
        `tf.RaggedTensor` where rows differ in shape. None on ranks other than `root_rank`.

    Raises:
        ValueError: on every rank, if ranks pass data of different length, or no data.
        TypeError: if `data` is of another type.
        RankError: on the other ranks, if a rank raises while it loads or predicts its share.

    Example:
    ```python
    predictions = ringar.predict(model, images, batch_size=64)
    ```
    """
    if root_rank is not None and root_rank not in or_all(process_set).ranks:
        raise ValueError(
            f"`root_rank` must be one of the ranks {or_all(process_set).ranks}. "
            f"Received: root_rank={root_rank}"
        )
    ranks = or_all(ranks_with_data(model, process_set))
    share: Any = None

    def divide() -> int:
        nonlocal share
        length, share_of = _divide(data)
        share = share_of(ranks.rank(), ranks.size())
        return length

    lengths = together(
        divide, caller="ringar.predict", deed="to divide its data", process_set=ranks
    )
    _check_lengths(lengths, ranks)
    is_unknown = lengths[0] == _UNKNOWN
    outputs: Any = None

    def predict_share() -> _Share:
        nonlocal outputs
        rows: list[int] = []
        with forward.together(model):
            if is_unknown:
                outputs, rows = _by_batches(model, share)
            elif share is not None:
                bar = verbose if ranks.rank() == 0 else 0
                outputs = model.predict(share, batch_size=batch_size, verbose=bar)
        return _Share.of(outputs, rows)

    shares = together(
        predict_share, caller="ringar.predict", deed="to predict its share", process_set=ranks
    )
    order = _order([share.rows for share in shares], ranks) if is_unknown else None
    filled = [share for share in shares if share.kinds] or _refuse_empty()
    if root_rank is None:
        root = None
    else:  # on a grid, ranks with another part than the root's collect theirs at the first of them
        root = ranks.ranks.index(root_rank) if root_rank in ranks.ranks else 0
    leaves = tf.nest.flatten(outputs) if outputs is not None else [None] * len(filled[0].kinds)
    kinds = zip(*(share.kinds for share in filled), strict=True)
    arrays = [
        _collect(array, set(of_ranks), order, ranks, root)
        for array, of_ranks in zip(leaves, kinds, strict=True)
    ]
    if root_rank not in (None, place.rank()):
        return None
    return tf.nest.pack_sequence_as(filled[0].skeleton, arrays)


def _by_batches(model: keras.Model, batches: tf.data.Dataset) -> tuple[Any, list[int]]:
    """Return the predictions of all batches in one, None for no batch, and the rows of each."""
    outputs = []
    for batch in batches:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        outputs.append(model.predict_on_batch(x))
    if not outputs:
        return None, []
    rows = [len(tf.nest.flatten(output)[0]) for output in outputs]
    return tf.nest.map_structure(lambda *parts: ragged.concatenate(parts), *outputs), rows


_Kind = tuple[np.dtype, tuple[int, ...]] | None
"""The dtype of an array of predictions and the shape of its rows; None if they are ragged."""


@dataclasses.dataclass
class _Share:
    """Describe the predictions of one rank to the others.

    Attributes:
        rows: the rows of each batch, for batches of unknown number.
        skeleton: the structure of the predictions, with None in the place of arrays.
        kinds: the kind of each array; empty if there are no predictions.
    """

    rows: list[int]
    skeleton: Any
    kinds: list[_Kind]

    @classmethod
    def of(cls, outputs: Any, rows: list[int]) -> _Share:
        kinds: list[_Kind] = []
        for array in tf.nest.flatten(outputs) if outputs is not None else []:
            if isinstance(array, np.ndarray):
                kinds.append((array.dtype, array.shape[1:]))
            elif isinstance(array, tf.RaggedTensor):
                kinds.append(None)
            else:
                raise TypeError(
                    "ringar.predict needs a model whose predictions are NumPy arrays or ragged "
                    f"tensors. Received: {type(array).__name__}"
                )
        return cls(rows, tf.nest.map_structure(lambda array: None, outputs), kinds)


def _divide(data: Any) -> tuple[int, Callable[[int, int], Any]]:
    """Return the length of `data`, and the function that returns a rank's share, or None."""
    if isinstance(data, tf.data.Dataset):
        length = int(data.cardinality())
        if length == tf.data.INFINITE_CARDINALITY:
            raise ValueError("`data` must end. Received: a tf.data.Dataset of infinite length")
        if length == tf.data.UNKNOWN_CARDINALITY:
            return _UNKNOWN, lambda rank, size: data.shard(size, rank)
        return length, _block(
            length, lambda block: data.skip(block.start).take(block.stop - block.start)
        )
    if isinstance(data, keras.utils.PyDataset):
        batches = data.num_batches
        if batches is None:
            raise ValueError("`data` must end. Received: a keras.utils.PyDataset without a length")
        return batches, _block(batches, lambda block: _Part(data, block))
    length = _rows_of(data)
    return length, _block(length, lambda block: tf.nest.map_structure(lambda a: a[block], data))


def _rows_of(data: Any) -> int:
    shapes: list[tuple[int, ...]] = []
    for array in tf.nest.flatten(data):
        shapes.append(tuple(getattr(array, "shape", ())))
    if not shapes or not all(shapes):
        raise TypeError(
            "`data` must be an array, a tensor, a tuple, list or dict of them, a tf.data.Dataset "
            f"or a keras.utils.PyDataset. Received: {type(data).__name__}"
        )
    if len({shape[0] for shape in shapes}) > 1:
        raise ValueError(f"All arrays must have the same number of rows. Received: {shapes}")
    return int(shapes[0][0])


def _block(length: int, part: Callable[[slice], Any]) -> Callable[[int, int], Any]:
    def share(rank: int, size: int) -> Any:
        block = slice(length * rank // size, length * (rank + 1) // size)
        return part(block) if block.start < block.stop else None

    return share


class _Part(keras.utils.PyDataset):
    """Hold some batches of a `keras.utils.PyDataset`."""

    def __init__(self, source: keras.utils.PyDataset, block: slice) -> None:
        super().__init__(
            workers=source.workers,
            use_multiprocessing=source.use_multiprocessing,
            max_queue_size=source.max_queue_size,
        )
        self._source, self._numbers = source, range(block.start, block.stop)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        return self._source[self._numbers[index]]


def _check_lengths(lengths: Sequence[int], ranks: ProcessSet) -> None:
    if len(set(lengths)) > 1:
        _refuse_lengths(["unknown" if n == _UNKNOWN else n for n in lengths], "rows", ranks)
    if lengths[0] == 0:
        _refuse_empty()


def _refuse_lengths(lengths: Sequence[object], unit: str, ranks: ProcessSet) -> NoReturn:
    of_ranks = zip(lengths, ranks.ranks, strict=True)
    raise ValueError(
        _CALL.refusal(
            "data of the same length on every rank",
            ", ".join(f"{length} {unit} (rank {rank})" for length, rank in of_ranks),
            "Pass all of the data on every rank; ringar.predict takes each rank's share.",
        )
    )


def _refuse_empty() -> NoReturn:
    raise ValueError(
        _CALL.refusal("data with at least one row", "none", "Pass all of the data on every rank.")
    )


def _order(rows: Sequence[Sequence[int]], ranks: ProcessSet) -> np.ndarray:
    """Return the places of the rows, which lie rank by rank, in the order of the batches.

    Args:
        rows: for each rank, the rows of each of its batches.
        ranks: the ranks.
    """
    count = [len(of_rank) for of_rank in rows]
    if sorted(count, reverse=True) != count or count[0] - count[-1] > 1:
        _refuse_lengths(count, "batches of its share", ranks)
    stops = np.cumsum([number for of_rank in rows for number in of_rank])
    places = iter(np.split(np.arange(stops[-1]), stops[:-1]) if len(stops) else [])
    of_ranks = [[next(places) for _ in of_rank] for of_rank in rows]
    in_turn = [of_rank[n] for n in range(count[0]) for of_rank in of_ranks if n < len(of_rank)]
    return np.concatenate(in_turn) if in_turn else np.zeros(0, np.int64)


def _collect(
    array: ragged.Rows | None,
    kinds: set[_Kind],
    order: np.ndarray | None,
    ranks: ProcessSet,
    root: int | None,
) -> ragged.Rows:
    """Return the rows of all ranks in order; without meaning on ranks other than the root.

    Args:
        array: the rows of this rank, if it has any.
        kinds: the kinds of the ranks' arrays.
        order: the places of the rows in the result; None: as they are.
        ranks: the ranks.
        root: the place of the one rank that gets the rows; None: all get them.
    """
    kind = next(iter(kinds))
    if len(kinds) > 1 or kind is None or kind[0].kind in "OSU":  # ragged, or strings
        parts = allgather_object(ragged.pack(array), name=_NAME, process_set=ranks)
        rows = ragged.concatenate([ragged.unpack(part) for part in parts if part is not None])
        return rows if order is None else ragged.take(rows, order)
    if array is None:
        array = np.empty((0, *kind[1]), kind[0])
    if root is None:
        rows = np.asarray(allgather(array, name=_NAME, process_set=ranks))
    else:
        splits = [len(array) if rank == root else 0 for rank in range(ranks.size())]
        rows = np.asarray(alltoall(array, splits, name=_NAME, process_set=ranks)[0])
        if ranks.rank() != root:
            return rows
    return rows if order is None else rows[order]
