"""The data of one step, and the check that all modules have the same data."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from ringar.collectives import allgather_object
from ringar.collectives.digest import digest
from ringar.job.process_sets import ProcessSet
from ringar.sharding import examples


@dataclasses.dataclass(frozen=True)
class Batch:
    """Hold a batch, or a part of one.

    Attributes:
        inputs: the inputs of the whole model, in its order.
        x: the inputs as Keras passed them.
        y: the targets.
        sample_weight: the weights of the examples.
        share: the fraction of the whole batch.
    """

    inputs: list[Any]
    x: Any
    y: Any = None
    sample_weight: Any = None
    share: float = 1.0

    @property
    def rows(self) -> int:
        """The number of examples."""
        return int(self.inputs[0].shape[0])

    @property
    def targets(self) -> tuple[Any, Any, Any]:
        """Inputs, targets and sample weights, for the loss."""
        return self.x, self.y, self.sample_weight

    def cut(self, count: int) -> list[Batch]:
        """Cut into at most `count` parts, none empty, whose numbers of rows differ by at most 1."""
        rows = self.rows
        count = max(1, min(count, rows))
        ends = [i * rows // count for i in range(count + 1)]

        def part(begin: int, end: int) -> Batch:
            inputs, x, y, weight = keras.tree.map_structure(
                lambda t: None if t is None else t[begin:end],
                (self.inputs, self.x, self.y, self.sample_weight),
            )
            return Batch(inputs, x, y, weight, (end - begin) / rows)

        return [part(*ends[i : i + 2]) for i in range(count)]

    def digest(self) -> int:
        """Return a digest of the batch."""
        tensors = keras.tree.flatten((self.inputs, self.y, self.sample_weight))
        return digest(tensor for tensor in tensors if tensor is not None)


class Reader:
    """Make batches from the data that Keras passes, whatever the structure of the inputs.

    Args:
        model: the whole model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._names = [tensor.name for tensor in model.inputs]

    def batch(self, data: Any) -> Batch:
        """Return the batch in `x`, `(x, y)` or `(x, y, sample_weight)`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return Batch(self.inputs(x), x, y, sample_weight)

    def inputs(self, x: Any) -> list[Any]:
        """Return the inputs in the order of the model's inputs.

        Raises:
            ValueError: their number is wrong.
        """
        if isinstance(x, dict):
            tensors = [x[name] for name in self._names if name in x]
        else:
            tensors = keras.tree.flatten(x)
        if len(tensors) != len(self._names):
            received = list(x) if isinstance(x, dict) else f"{len(tensors)} of them"
            raise ValueError(
                f"`x` must have {len(self._names)} inputs, named {', '.join(self._names)}. "
                f"Received: {received}"
            )
        return tensors


def check_same(batch: Batch, ranks: ProcessSet) -> None:
    """Check that all ranks have the same batch. Collective over `ranks`.

    Raises:
        MismatchError: on every rank, if the batches differ.
    """
    digests = allgather_object(batch.digest(), name="first batch", process_set=ranks)
    if len(set(digests)) > 1:
        raise examples.refusal("first batches", digests, ranks.ranks)
