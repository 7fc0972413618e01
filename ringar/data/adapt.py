"""`ringar.data.adapt`: adapt a preprocessing layer to the rows of all ranks.

Vocabularies. Each rank counts the tokens of its own rows; the ranks add up their counts and number
the tokens by them as one process does. Only counts travel.

All other layers compute in floating point, or keep summaries, so that the order of rows and batches
decides the last bits. Their ranks repeat what one process does: each rank feeds the layer the k-th
batches of all ranks, in the order in which `ringar.data.shard` has dealt them out.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.data import marks
from ringar.job.process_sets import ProcessSet, or_all

if TYPE_CHECKING:
    import keras

    from ringar.sharding.grid import Grid


def adapt(
    layer: keras.layers.Layer,
    data: object,
    *,
    steps: int | None = None,
    process_set: ProcessSet | None = None,
    grid: Grid | None = None,
) -> None:
    """Adapt a layer to the rows of all ranks, as `layer.adapt` of one process with all rows.

    Call it on every rank, with the rank's own rows. The layer is then the same on all ranks, bit by
    bit, and the same as in one process whose batches are those of all ranks together.

    Args:
        layer: a layer with `adapt`: `Normalization`, `Discretization`, `StringLookup`,
            `IntegerLookup`, `TextVectorization`, `FeatureSpace` or a layer of your own.
        data: this rank's share of what `layer.adapt` takes: an array, a tensor, a
            `tf.data.Dataset`, a `keras.utils.PyDataset`, batches. Data that `ringar.data.shard` has
            not dealt out follow each other in the order of the ranks.
        steps: the number of batches of one process, for a layer whose `adapt` has `steps`.
        process_set: the ranks that share the data; by default all.
        grid: a `ringar.parallel.Grid`, if its model groups share the data.

    Raises:
        ValueError: if both `process_set` and `grid` are given.
        TypeError: if `layer` has no `adapt`.

    Examples:
        Each of two ranks has two of four rows:

        >>> layer = keras.layers.Normalization()
        >>> ringar.data.adapt(layer, ringar.data.shard(np.array([[0.0], [2.0], [4.0], [6.0]])))
        >>> layer.mean.numpy()
        array([[3.]], dtype=float32)
    """
    if not callable(getattr(layer, "adapt", None)):
        raise TypeError(f"`layer` must have a method `adapt`. Received: {type(layer).__name__}")
    if grid is not None and process_set is not None:
        raise ValueError("`process_set` must be None with `grid`, which has its own.")
    ranks = or_all(process_set if grid is None else grid.data_set)
    _adapt(layer, data, ranks, {} if steps is None else {"steps": steps})


def _adapt(
    layer: Any, data: Any, ranks: ProcessSet, options: dict[str, Any], batch: int | None = None
) -> None:
    import keras

    table = getattr(layer, "_lookup_layer", layer)
    if ranks.size() == 1:
        layer.adapt(data, **options)
    elif isinstance(layer, keras.utils.FeatureSpace):
        _adapt_features(layer, data, ranks)
    elif hasattr(table, "token_counts") and not options:
        finalize = table.finalize_state

        def finalize_all() -> None:
            _add_up(table, ranks)
            finalize()

        with _replaced(table, "finalize_state", finalize_all):
            layer.adapt(data, **options)
    else:
        layer.adapt(_of_all(data, ranks, batch), **options)


def _add_up(table: Any, ranks: ProcessSet) -> None:
    """Replace the counts of a lookup layer by those of all ranks."""
    for name in ("token_counts", "token_document_counts"):
        counts = getattr(table, name, None)
        if counts is None:
            continue
        arrays = tuple(part.numpy() for part in counts.export())
        counts.remove(counts.export()[0])
        for tokens, number in _gather(arrays, name, ranks):
            if len(tokens):
                counts.insert(tokens, number + counts.lookup(tokens))
    if hasattr(table, "num_documents"):
        documents = _gather(int(table.num_documents), "documents", ranks)
        table.num_documents.assign(sum(documents))


def _adapt_features(layer: Any, data: Any, ranks: ProcessSet) -> None:
    """Adapt a feature space, which adapts a layer for each feature."""
    import tensorflow as tf

    if isinstance(data, dict):
        data = marks.mark(tf.data.Dataset.from_tensor_slices(data), "turn")
    with contextlib.ExitStack() as stack:
        for name, part in layer.preprocessors.items():
            # Keras makes batches of a feature that has none.
            batch = 32 if data.element_spec[name].shape.rank == 0 else None
            function = functools.partial(_adapt_feature, part, ranks, batch)
            if hasattr(part, "adapt"):
                stack.enter_context(_replaced(part, "adapt", function))
        layer.adapt(data)


def _adapt_feature(layer: Any, ranks: ProcessSet, batch: int | None, data: Any) -> None:
    replaced = vars(layer).pop("adapt")
    try:
        _adapt(layer, data, ranks, {}, batch)
    finally:
        vars(layer)["adapt"] = replaced


@contextlib.contextmanager
def _replaced(layer: Any, name: str, function: Callable[..., None]) -> Iterator[None]:
    """Give a layer another method for a while, unseen by Keras' tracking."""
    vars(layer)[name] = function
    try:
        yield
    finally:
        del vars(layer)[name]


def _of_all(data: Any, ranks: ProcessSet, batch: int | None) -> Any:
    """Return the data of one process, given the share of each rank."""
    import tensorflow as tf

    if isinstance(data, np.ndarray | tf.Tensor):
        rows = _gather(np.asarray(data), "rows", ranks)
        everyone = _in_turn(rows)
        return everyone if isinstance(data, np.ndarray) else tf.constant(everyone)
    how = marks.order_of(data)
    chunks = _chunks(data, ranks)
    first = next(chunks, None)
    if first is None:
        raise ValueError("`data` must have a batch on some rank. Received: none")
    spec = _spec(data, next(batches[0] for batches in first if batches), how)

    def batches() -> Iterator[np.ndarray]:
        for chunk in itertools.chain([first], chunks):
            for of_ranks in itertools.zip_longest(*chunk):
                yield from _merged([x for x in of_ranks if x is not None], how)

    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return dataset if batch is None else dataset.unbatch().batch(batch)


def _merged(batches: list[np.ndarray], how: marks.Order) -> list[np.ndarray]:
    """Return the batches of one process of which each rank has had a share."""
    if how == "turn":
        return batches
    return [_in_turn(batches) if how == "rows" else np.concatenate(batches)]


def _in_turn(parts: list[np.ndarray]) -> np.ndarray:
    """Return the rows of all parts in the order of one process: each part's first, then second."""
    places = np.concatenate([np.arange(len(part)) for part in parts])
    return np.concatenate(parts)[np.argsort(places, kind="stable")]


def _chunks(data: Iterable[Any], ranks: ProcessSet) -> Iterator[list[list[np.ndarray]]]:
    """Yield the next batches of all ranks, until no rank has any. Collective."""
    arrays = map(_array, data)
    length = 1
    while any(chunk := _gather(list(itertools.islice(arrays, length)), "batches", ranks)):
        yield chunk
        # Single rows travel together.
        length = 64 if max(batch.ndim for batches in chunk for batch in batches) < 2 else 1


def _gather(value: Any, label: str, ranks: ProcessSet) -> list[Any]:
    """Return the values of all ranks. Collective."""
    # Collectives import TensorFlow, which shares of other data do not need.
    from ringar.collectives import allgather_object

    return allgather_object(value, name=f"adapt/{label}", process_set=ranks)


def _array(batch: Any) -> np.ndarray:
    """Return the inputs in a batch."""
    import tensorflow as tf

    inputs = batch[0] if isinstance(batch, tuple) else batch
    if isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
        raise TypeError(
            f"Batches must be dense for a layer without a vocabulary. Received: {type(inputs)}"
        )
    return np.asarray(inputs)


def _spec(data: Any, batch: np.ndarray, how: marks.Order) -> Any:
    """Return the type of the batches of one process."""
    import tensorflow as tf

    spec = getattr(data, "element_spec", None)
    spec = spec[0] if isinstance(spec, tuple) else spec
    shape = list(batch.shape if spec is None else spec.shape)
    if len(shape) > 1 or how != "turn":
        shape[0] = None
    return tf.TensorSpec(shape, tf.string if batch.dtype.kind in "OSU" else batch.dtype)
