"""The warning that ranks were given equal data, as they are if a script forgets to shard them.

Where the ranks of a model group must have equal data, an error says that they differ. Another
warning says that the ranks' data begin anew at different steps.

Before its first step each rank takes the first batch from the iterator, and the ranks compare
digests of their batches. The training function gets an iterator of the same type that begins with
this batch, so that it is not traced again. Later calls get Keras' own iterator: from the second
step on, training is the same as without the check.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives import allgather_object
from ringar.collectives.agree import compare
from ringar.collectives.digest import digest
from ringar.job import log, membership
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras.optimizer import grid_of
from ringar.sharding import examples

_NO_BATCH = -1
_log = log.logger(__name__)


class FirstBatch:
    """Compare the first batches of the ranks, in the first training only.

    Args:
        process_set: the ranks that train together; by default all.
    """

    def __init__(self, process_set: ProcessSet | None = None) -> None:
        self.process_set = process_set
        self._is_done = False

    def watch(self, model: keras.Model) -> None:
        """Make the next call of the training function compare its batch. Collective in that call.

        Call it when training begins: the training function exists.
        """
        train = getattr(model, "train_function", None)
        if train is None or self._is_done or or_all(self.process_set).size() == 1:
            return
        if membership.is_elastic():
            return  # ranks that join would compare their first batch alone

        def look_first(iterator: Any) -> Any:
            if not self._is_done:
                self._is_done = True
                if model.train_function is look_first:
                    model.train_function = train
                layout = _layout(iterator)
                length = _pass_length(getattr(iterator, "_dataset", None))
                fingerprint, iterator = _look(iterator, getattr(model, "steps_per_execution", 1))
                everyone, lengths = self._exchange(fingerprint, layout, length)
                _require_same(everyone, model)
                self._warn_if_equal(everyone, model)
                self._warn_of_passes(lengths)
            return train(iterator)

        model.train_function = look_first

    def _exchange(
        self, fingerprint: int, layout: str | None, length: int
    ) -> tuple[list[int], list[int]]:
        """Return digests and lengths of all ranks; raise on all if the parts of batches differ."""
        gathered = allgather_object(
            (fingerprint, layout, length), name="first batch", process_set=self.process_set
        )
        first_layout = next((layout for _, layout, _ in gathered if layout is not None), None)
        compare(
            [{"parts of a batch": layout or first_layout} for _, layout, _ in gathered],
            caller="ringar.callbacks.Distributed",
            remedy="Give `fit` inputs, targets and weights of examples on every rank alike; with "
            "`class_weight` a batch has weights, too.",
            ranks=or_all(self.process_set).ranks,
        )
        return [digest for digest, _, _ in gathered], [length for *_, length in gathered]

    def _warn_if_equal(self, everyone: list[int], model: keras.Model) -> None:
        ranks = or_all(self.process_set)
        grid = grid_of(model.optimizer)
        # The ranks of a model group have the same examples, or examples of their own (a hybrid).
        equal = _equal(everyone, 1 if grid is None else grid.model)
        if equal and ranks.rank() == 0:
            _log.warning(
                "The first batch is the same on ranks %s: these ranks compute the same gradients, "
                "and the job does the work of fewer ranks. Give each rank its share of the data "
                "with ringar.data.shard(data), or shuffle with a seed of its own on each rank.",
                ", ".join(str(ranks.ranks[rank]) for rank in equal),
            )

    def _warn_of_passes(self, lengths: list[int]) -> None:
        ranks = or_all(self.process_set)
        if len(set(lengths)) > 1 and ranks.rank() == 0:
            _log.warning(
                "Ranks repeat their data after different numbers of elements: %s. From the second "
                "pass on, global batches are not those of one process. Call `repeat` before "
                'ringar.data.shard, or shard with remainder="drop".',
                ", ".join(f"{n} (rank {r})" for n, r in zip(lengths, ranks.ranks, strict=True)),
            )


def _pass_length(dataset: Any) -> int:
    """Return the number of elements after which a dataset is repeated; 0 if there is none."""
    sources = dataset._inputs() if isinstance(dataset, tf.data.Dataset) else []
    if type(dataset).__name__ == "_RepeatDataset":
        return int(sources[0].cardinality())
    return next((length for source in sources if (length := _pass_length(source))), 0)


def _require_same(everyone: list[int], model: keras.Model) -> None:
    """Compare the digests within each model group, if a layer says `needs_same_batches`.

    Raises:
        ValueError: on every rank, if the batches of a group differ.
    """
    layers = list(model._flatten_layers())
    grids = [x.grid for x in layers if getattr(x, "needs_same_batches", False)]
    is_hybrid = any(getattr(x, "reads", None) == "examples" for x in layers)
    if not grids or is_hybrid or len(everyone) != grids[0].data * grids[0].model:
        return
    for first in range(0, len(everyone), grids[0].model):
        group = everyone[first : first + grids[0].model]
        if _NO_BATCH not in group and len(set(group)) > 1:
            raise examples.refusal("first batches", group, range(first, first + len(group)))


def _layout(iterator: Any) -> str | None:
    """Return the types of the tensors in inputs, targets and weights; None if unknown."""
    spec = getattr(iterator, "element_spec", None)
    if spec is None:
        return None
    parts = spec if isinstance(spec, tuple) else (spec,)
    # No names, which Keras numbers: a dictionary may have those of outputs.
    return str([[type(tensor).__name__ for tensor in tf.nest.flatten(part)] for part in parts])


def _look(iterator: Any, steps: int) -> tuple[int, Any]:
    """Return the digest of the first batch, and an iterator over the first `steps` batches."""
    batches = list(itertools.islice(iterator, steps))
    if not batches:
        return _NO_BATCH, iterator
    first_digest = digest(_arrays_of(batches[0]))
    if not isinstance(iterator, tf.data.Iterator):
        return first_digest, iter(batches)
    # Not `from_generator`: when a dataset that calls Python is destroyed, it waits for Python's
    # lock, and the thread that destroys it holds the lock.
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    dataset = functools.reduce(tf.data.Dataset.concatenate, parts)
    return first_digest, iter(dataset.map(lambda *batch: _as_in(iterator.element_spec, *batch)))


def _arrays_of(batch: Any) -> list[Any]:
    """Return the arrays of a batch, without parts that have no value, such as None and variants."""
    tensors = tf.nest.flatten(batch, expand_composites=True)
    tensors = [x for x in tensors if getattr(x, "dtype", None) not in (tf.variant, tf.resource)]
    return [x.numpy() if isinstance(x, tf.Tensor) else x for x in tensors if x is not None]


def _as_in(spec: Any, *batch: Any) -> Any:
    """Return a batch with the shapes of `spec`, for which the training function is traced."""

    def open_shape(part: Any, tensor_spec: Any) -> Any:
        if not isinstance(tensor_spec, tf.TensorSpec):
            return part
        return tf.compat.v1.placeholder_with_default(part, tensor_spec.shape)

    # `map` spreads a tuple over the arguments.
    elements = batch if isinstance(spec, tuple) else batch[0]
    return tf.nest.map_structure(open_shape, elements, spec)


def _equal(digests: list[int], group: int) -> list[int]:
    """Return the ranks whose digest occurs in another group, too; a group has `group` ranks."""
    return [
        rank
        for rank, fingerprint in enumerate(digests)
        if fingerprint != _NO_BATCH
        and any(
            fingerprint == digests[peer] and peer // group != rank // group
            for peer in range(len(digests))
        )
    ]
