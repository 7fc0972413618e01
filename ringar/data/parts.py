"""Parts of the batches of a `tf.data.Dataset`: this rank's rows of each batch.

A rank has as many batches as the dataset, without those that have no row for it. `tf.data` must
know their number where it knows that of the dataset. If the number of batches is unknown, Keras
runs one step more, and executes in it all that does not depend on a batch: the step counter of an
optimizer and the counts of metrics advance.

So the parts are filtered only where some batch has too few rows. The rows of batches follow from
the transformations that made them. If these do not tell, each batch must have a row for each rank;
only the last batch of a dataset of unknown length may have fewer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ringar.data.datasets import element_of, warn_of_different_orders
from ringar.data.deal import Deal

_MOST_BATCHES = 10_000_000
"""The most batches whose rows are looked up."""

_BATCHES = ("Batch", "ParallelBatch", "PaddedBatch")
_ONE_BY_ONE = ("Map", "ParallelMap", "Prefetch", "Cache", "Options", "Take", "DenseToRagged")


def split(dataset: tf.data.Dataset, rule: Deal) -> tf.data.Dataset:
    """Return this rank's rows of each batch of `dataset`.

    Raises:
        TypeError: if the elements have a component that cannot be cut.
        ValueError: if the elements have no rows, or batches too few.
    """
    warn_of_different_orders(dataset)
    specs = [spec for spec in tf.nest.flatten(dataset.element_spec) if not _is_nothing(spec)]
    _check(specs, dataset.element_spec)
    if min((_static_rows(spec) or 0) for spec in specs) >= rule.size:
        return _cut(dataset, rule, rule.size)
    count = int(dataset.cardinality())
    rows = _rows_of_batches(dataset, count)
    if rows is not None:
        return _split_known(dataset, rule, rows)
    if rule.remainder == "drop" and count < 0:
        parts = _cut_some(dataset, rule)
        return parts if count == tf.data.UNKNOWN_CARDINALITY else _of_length(parts, count)
    if count == tf.data.UNKNOWN_CARDINALITY:
        return _cut_some(_short_at_the_end(dataset, rule), rule)
    return _cut(dataset, rule, rule.size)


def _split_known(dataset: tf.data.Dataset, rule: Deal, rows: np.ndarray) -> tf.data.Dataset:
    """Return this rank's parts of batches with these numbers of rows."""
    if rule.remainder == "keep" and (rows[:-1] < rule.size).any():
        number = int(np.argmax(rows < rule.size))
        raise ValueError(f"{_too_few(rule)}: {rows[number]} in batch {number}")
    if (rows >= rule.size).all():
        return _cut(dataset, rule, rule.size)
    if (rows < rule.size).all():
        raise ValueError(f"{_too_few(rule)}: {rows.max()} at most")
    return _of_length(_cut_some(dataset, rule), sum(map(rule.has_part, rows.tolist())))


def _of_length(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def _cut(dataset: tf.data.Dataset, rule: Deal, least: int) -> tf.data.Dataset:
    """Return this rank's rows of batches that have `least` rows or more."""

    def part_of(*batch: Any) -> Any:
        element = element_of(dataset, batch)
        rows = _rows(dataset, element)
        with tf.control_dependencies(_checks(dataset, rule, rows, least)):
            part = rule.part(tf.identity(rows[0]))
            start, length = part.start, part.stop - part.start
        return tf.nest.map_structure(
            lambda spec, x: _rows_from(spec, x, start, length, rule), dataset.element_spec, element
        )

    return dataset.map(part_of, num_parallel_calls=tf.data.AUTOTUNE)


def _rows_from(spec: Any, batch: Any, start: tf.Tensor, length: tf.Tensor, rule: Deal) -> Any:
    """Return `length` rows of a component of a batch."""
    if _is_nothing(spec):
        return batch
    if not isinstance(spec, tf.TensorSpec):  # tf.data cuts whatever it can batch
        rows = tf.data.Dataset.from_tensor_slices(batch).skip(tf.cast(start, tf.int64))
        length = tf.cast(length, tf.int64)
        return rows.take(length).batch(length).get_single_element()
    rows = batch[start : start + length]
    if (static := _static_rows(spec)) is not None:
        part = rule.part(static)
        rows.set_shape([part.stop - part.start, *batch.shape[1:]])
    return rows


def _cut_some(dataset: tf.data.Dataset, rule: Deal) -> tf.data.Dataset:
    """Return this rank's rows of each batch that has some for it."""

    def has_part(*batch: Any) -> tf.Tensor:
        part = rule.part(_rows(dataset, element_of(dataset, batch))[0])
        return part.start < part.stop

    return _cut(dataset.filter(has_part), rule, 1)


def _short_at_the_end(dataset: tf.data.Dataset, rule: Deal) -> tf.data.Dataset:
    """Return `dataset`, in which only the last batch may have fewer rows than there are ranks."""

    def check(least: tf.Tensor, element: Any) -> tuple[tf.Tensor, Any]:
        rows = _rows(dataset, element)[0]
        with tf.control_dependencies([_require(least >= rule.size, _too_few(rule), least)]):
            return tf.minimum(least, rows), element

    try:
        return dataset.scan(tf.constant(rule.size, tf.int32), check)
    except NotImplementedError:
        raise TypeError(
            "`split_batches=True` needs a known number of batches for elements of "
            f"{dataset.element_spec}: apply tf.data.experimental.assert_cardinality. "
            "Received: a dataset of unknown length"
        ) from None


def _checks(
    dataset: tf.data.Dataset, rule: Deal, rows: list[tf.Tensor], least: int
) -> list[tf.Operation]:
    """Return the checks that all components of a batch have the same number of rows, and enough."""
    differ = (
        f"rank {rule.rank} | data.shard: expected components with the same number of rows with "
        f"`split_batches=True`, received {dataset.element_spec} with"
    )
    checks = [_require(tf.reduce_all(tf.equal(rows, rows[0])), differ, *rows)]
    return [*checks, _require(rows[0] >= least, _too_few(rule), rows[0])]


def _require(condition: tf.Tensor, error: str, *received: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(condition, [error, *received])


def _too_few(rule: Deal) -> str:
    return (
        f"rank {rule.rank} | data.shard: with `split_batches=True` expected at least {rule.size} "
        "rows in each batch but the last, one for each rank; call "
        "`dataset.batch(…, drop_remainder=True)`, or `batch` after `shard`. Received"
    )


def _rows(dataset: tf.data.Dataset, element: Any) -> list[tf.Tensor]:
    """Return the number of rows of each component of a batch."""
    pairs = zip(tf.nest.flatten(dataset.element_spec), tf.nest.flatten(element), strict=True)
    return [_rows_of(spec, component) for spec, component in pairs if not _is_nothing(spec)]


def _rows_of(spec: Any, component: Any) -> tf.Tensor:
    if isinstance(spec, tf.TensorSpec):
        return tf.shape(component)[0]
    return tf.cast(tf.data.Dataset.from_tensor_slices(component).cardinality(), tf.int32)


def _static_rows(spec: Any) -> int | None:
    shape = getattr(spec, "shape", None)
    return None if shape is None or shape.rank is None else shape[0]


def _is_nothing(spec: Any) -> bool:
    """Return whether Keras takes a component for None."""
    return isinstance(spec, tf.OptionalSpec) or type(spec).__name__ == "NoneTensorSpec"


def _check(specs: list[Any], element_spec: Any) -> None:
    for spec in specs:
        shape = getattr(spec, "shape", None)
        if isinstance(spec, tf.data.DatasetSpec) or not hasattr(spec, "_unbatch"):
            raise TypeError(
                "`split_batches=True` needs elements of components with rows. Received: a "
                f"component of {spec}"
            )
        if shape is not None and shape.rank == 0:
            raise ValueError(
                "`split_batches=True` needs a dataset of batches: call `dataset.batch()` before. "
                f"Received: elements of {element_spec}"
            )
    if not specs:
        raise ValueError(f"`split_batches=True` needs batches. Received: {element_spec}")
    static = {rows for spec in specs if (rows := _static_rows(spec)) is not None}
    if len(static) > 1:
        raise ValueError(
            "`split_batches=True` needs components with the same number of rows. Received: "
            f"elements of {element_spec}"
        )


def _rows_of_batches(dataset: tf.data.Dataset, count: int) -> np.ndarray | None:
    """Return the rows of each of the first `count` batches, None if they cannot be told."""
    if not 0 <= count <= _MOST_BATCHES:
        return None
    name = type(dataset).__name__.removeprefix("_").removesuffix("Dataset")
    sources = dataset._inputs()
    if name in _BATCHES:
        size, elements = int(dataset._batch_size), int(sources[0].cardinality())
        rows = np.full(count, size)
        return rows if elements < 0 else np.minimum(rows, elements - size * np.arange(count))
    if name in _ONE_BY_ONE:
        return _rows_of_batches(sources[0], count)
    if name == "Skip" and (skipped := int(dataset._count)) >= 0:
        below = _rows_of_batches(sources[0], skipped + count)
        return None if below is None else below[skipped:]
    if name in ("Repeat", "Concatenate"):
        of_sources = (_rows_of_batches(source, int(source.cardinality())) for source in sources)
        counts = [rows for rows in of_sources if rows is not None and len(rows)]
        if len(counts) == len(sources):
            return np.resize(np.concatenate(counts), count)
    return None
