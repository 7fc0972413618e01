"""The backward pass of one net on several ranks, each with a span of the stages.

All ranks have the same examples and run the whole forward pass. The last rank has the end of the
net, with the loss, and begins the backward pass with a vector. Each other rank makes the Jacobians
of its span and reduces them to one matrix. `doubling` scans these, and each rank sweeps through its
span with the vector that enters it. Rank 0, with the first layers, comes last and sends nothing, so
it needs no matrix of its span. On two ranks there is therefore no product of two matrices, except
for `levels`.

Each rank computes the gradients of the weights in its span. They are gathered, so that all ranks
apply the same bits and their weights remain equal.

A message has a vector for each example, or a CSR matrix: its entries, their columns and the starts
of the rows. The ranks know each other's spans, and so the shape of each matrix they receive.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ringar.collectives import Average, allgather
from ringar.collectives.digest import digest
from ringar.collectives.recv import recv
from ringar.errors import MismatchError, OutOfMemoryError
from ringar.job.process_sets import ProcessSet
from ringar.keras.exchange import exchange_of
from ringar.parallel.scan import doubling
from ringar.parallel.scan.elements import Element, compose
from ringar.parallel.scan.route import Route, Share
from ringar.parallel.scan.sparse import scipy_sparse
from ringar.parallel.scan.stages import Chain, Stage

if TYPE_CHECKING:
    import keras


#: Data that must be the same on all ranks, and advice for the error.
_SAME = (
    ("examples", "Shuffle with a seed, and do not shard the data."),
    ("random numbers", "Call keras.utils.set_random_seed with one seed on all ranks, or give one "
     "to each Dropout."),
    ("trainable layers", "Freeze the same ones on all ranks."),
    ("layers or weights", "Build the model alike on all ranks, after keras.utils.set_random_seed "
     "with one seed, or call ringar.broadcast_variables(model.weights)."),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Part:
    """Hold a product of Jacobians, or the vectors dl/dh of a batch, as TensorFlow tensors.

    Attributes:
        arrays: the result of `pack`.
        stages: the stages of the Jacobians, from the loss back; empty for vectors.
    """

    arrays: list[tf.Tensor]
    stages: tuple[Stage, ...] = ()

    def then(self, after: Part) -> Part:
        """Return the composition of two parts: this one first."""
        count, of_both = len(self.arrays), self.stages and self.stages + after.stages

        def run(*arrays: np.ndarray) -> list[np.ndarray]:
            left, right = arrays[:count], arrays[count:]
            return pack(compose(unpack(left, self.stages), unpack(right, after.stages)))

        dtypes = [array.dtype for array in self.arrays]
        return Part(numpy_call(run, [*self.arrays, *after.arrays], dtypes), of_both)

    def tensors(self) -> list[tf.Tensor]:
        """Return the tensors to send."""
        return self.arrays


def pack(value: np.ndarray | Element) -> list[np.ndarray]:
    """Return vectors or a matrix as a list of arrays.

    Raises:
        OutOfMemoryError: the matrix is too large for indices of 32 bits.
    """
    if isinstance(value, np.ndarray):
        return [value]
    matrix = value.matrix
    if max(*matrix.shape, matrix.nnz) > np.iinfo(np.int32).max:
        raise OutOfMemoryError(
            "A matrix that travels between ranks may have at most 2^31 - 1 rows, columns and "
            f"entries. Received: layers {value.name}, of shape {matrix.shape} with {matrix.nnz} "
            "entries. Use a smaller batch."
        )
    return [matrix.data, *(a.astype(np.int32, copy=False) for a in (matrix.indices, matrix.indptr))]


def unpack(arrays: Sequence[np.ndarray], stages: Sequence[Stage]) -> Any:
    """Return the vectors or the matrix that `pack` has turned into arrays."""
    if not stages:
        return arrays[0]
    data, indices, indptr = arrays
    rows, columns = _shape(stages)
    per_example = any(stage.per_example for stage in stages)
    examples = (len(indptr) - 1) // rows
    matrix = scipy_sparse().csr_array(
        (data, indices, indptr), shape=(examples * rows, examples * columns), copy=False
    )
    name = ", ".join(f"{stage.layer.name} ({stage.kind})" for stage in stages)
    return Element(matrix, per_example, name)


class Depth:
    """Run the backward pass of a net on several ranks together.

    Args:
        chain: the chain of the net.
        ranks: the process set.
    """

    def __init__(self, chain: Chain, ranks: ProcessSet) -> None:
        self._chain, self._ranks = chain, ranks
        self._has_compared_weights = False

    def share(self, route: Route) -> Share:
        """Return this rank's share of the work.

        Raises:
            NotInitializedError: before `ringar.init()`.
            ValueError: this rank is not in the process set.
        """
        if self._ranks.rank() < 0:
            raise ValueError(
                "A model is trained by the ranks of its `process_set`, each of which must call "
                f"`fit`, and no other. Received: a call on a rank out of {self._ranks.ranks}"
            )
        if self._ranks.size() == 1:
            return Share(range(route.positions), route.positions)
        size = min(self._ranks.size(), route.positions)
        line = doubling.Line(self._ranks, size, reverse=True)
        return Share(route.share(line), route.positions, line)

    def exchange(
        self, arrays: list[tf.Tensor], route: Route, share: Share, last: tf.Tensor
    ) -> tf.Tensor | None:
        """Exchange parts; return dl/dh of the batch where it enters this span, None for the first.

        Args:
            arrays: the part of this rank, packed; empty if no rank follows.
            route: the route of the backward pass.
            share: this rank's share of it.
            last: dl/dh at the end of the net.
        """
        assert share.line is not None
        size, batch = share.line.size, last.shape[0]

        def receive(indices: range, source: int, name: str) -> Part:
            begin, end = (i * route.positions // size for i in (indices.start, indices.stop))
            stages = self._stages(route, range(begin, end))
            rows: int | None = _shape(stages)[0]
            if begin == 0:
                specs = [tf.TensorSpec([batch, rows], last.dtype)]
                return Part(recv(specs, source, name=name, process_set=self._ranks))
            if any(stage.per_example for stage in stages):
                rows = None if batch is None else batch * rows
            specs = [
                tf.TensorSpec([None], last.dtype),
                tf.TensorSpec([None], tf.int32),
                tf.TensorSpec([None if rows is None else rows + 1], tf.int32),
            ]
            return Part(recv(specs, source, name=name, process_set=self._ranks), stages)

        stages = () if share.is_first else self._stages(route, share.positions)
        part = Part(arrays, stages) if share.has_successor else None
        incoming = doubling.before(part, share.line, receive, "scan_depth")
        return None if incoming is None else incoming.arrays[0]

    def gather(self, route: Route, gradients: dict[int, list[Any]]) -> dict[int, list[Any]]:
        """Return the gradients of all stages, by number, given those of this rank's stages."""
        weights = {
            number: self._chain.stages[number].layer.trainable_weights
            for number in sorted(route.weight_positions)
        }
        (dtype,) = {weight.dtype for of_stage in weights.values() for weight in of_stage}
        # The ranks are in the order of the stages.
        vectors = [
            tf.zeros([math.prod(weight.shape)], dtype)
            if gradient is None
            else tf.reshape(gradient, [-1])
            for number in sorted(gradients)
            for gradient, weight in zip(gradients[number], weights[number], strict=True)
        ]
        flat = tf.concat(vectors, 0) if vectors else tf.zeros([0], dtype)
        everyone = allgather(flat, name="scan_depth/gradients", process_set=self._ranks)
        shapes = [tuple(weight.shape) for of_stage in weights.values() for weight in of_stage]
        parts = iter(tf.split(everyone, [math.prod(shape) for shape in shapes]))
        return {
            number: [tf.reshape(next(parts), weight.shape) for weight in of_stage]
            for number, of_stage in weights.items()
        }

    def check(self, inputs: tf.Tensor, masks: Sequence[tf.Tensor]) -> None:
        """Compare examples and Dropout masks between the ranks, and weights before the first step.

        Raises:
            ValueError: on all ranks, if they differ; in a graph TensorFlow's InvalidArgumentError.
        """
        (digests,) = numpy_call(self._digests, [inputs, *masks], [tf.int64])
        digests.set_shape([1, len(_SAME)])
        everyone = allgather(digests, name="scan_depth/same", process_set=self._ranks)
        numpy_call(self._compare, [everyone], [])

    def _digests(self, inputs: np.ndarray, *masks: np.ndarray) -> list[np.ndarray]:
        weights = 0
        if not self._has_compared_weights:
            layers = {id(stage.layer): stage.layer for stage in self._chain.stages}.values()
            values = [np.asarray(weight) for layer in layers for weight in layer.weights]
            weights = digest([np.array([stage.shape for stage in self._chain.stages]), *values])
        trains = [[v.trainable for v in stage.layer.weights] for stage in self._chain.stages]
        flags = np.array([flag for layer in trains for flag in [*layer, 2]], np.int8)
        columns = [digest([inputs]), digest(masks), digest([flags]), weights]
        return [np.array([columns], np.int64)]

    def _compare(self, everyone: np.ndarray) -> list[np.ndarray]:
        for digests, (data, remedy) in zip(everyone.T, _SAME, strict=True):
            if (digests != digests[0]).any():
                received = ", ".join(
                    f"{value:08x} (rank {rank})"
                    for value, rank in zip(digests, self._ranks.ranks, strict=True)
                )
                raise MismatchError(
                    f"The ranks of `process_set` must have the same {data}, since they train one "
                    f"model together. Received: {data} with the digests {received}. {remedy}"
                )
        self._has_compared_weights = True
        return []

    def _stages(self, route: Route, positions: range) -> tuple[Stage, ...]:
        numbers = route.numbers[positions.start : positions.stop]
        return tuple(self._chain.stages[number] for number in numbers)


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Check that a distributed optimizer averages, since all ranks have the same gradients.

    Raises:
        ValueError: it sums gradients.
    """
    exchange = exchange_of(optimizer)
    if exchange is not None and exchange.reduction.op is not Average:
        raise ValueError(
            "The optimizer of a model with `process_set` must average gradients, if it is "
            "distributed: they are the same on all ranks of the set. Received: one with "
            f"op={exchange.reduction.op}. Use it as it is, without ringar.DistributedOptimizer."
        )


def numpy_call(
    function: Callable[..., Any], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """Call `tf.numpy_function` with a function that returns a list of any length."""
    outputs = tf.numpy_function(function, list(inputs), list(dtypes))
    # Without outputs a graph returns the operation; with one output eager code returns no list.
    return tf.nest.flatten(outputs) if dtypes else []


def _shape(stages: Sequence[Stage]) -> tuple[int, int]:
    """Return the shape of one example's block in a product."""
    return stages[-1].shape[0], stages[0].shape[1]
