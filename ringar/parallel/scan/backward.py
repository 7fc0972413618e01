"""The backward pass of `Sequential`: the scan over a net's Jacobians, on one rank or several.

TensorFlow calls NumPy and SciPy for the products. On several ranks (`depth`), each rank makes the
Jacobians of a span of the chain. `begin` reduces them, TensorFlow exchanges the results with the
other ranks, and `sweep` continues with the vector that enters the span.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ringar.job import threads
from ringar.job.process_sets import ProcessSet
from ringar.parallel.scan import stages, tree
from ringar.parallel.scan.depth import Depth, numpy_call, pack
from ringar.parallel.scan.elements import Element, compose
from ringar.parallel.scan.route import Route, Share

if TYPE_CHECKING:
    import keras


#: `levels(elements, rows)`: the number of levels of the scan.
Levels = Callable[[list[Element], int], int]


@dataclasses.dataclass
class Forward:
    """Keep the tensors of a forward pass for the backward pass.

    Attributes:
        inputs: the inputs of the net.
        outputs: the outputs of the last stage.
        values: the outputs of each stage.
        records: the record of each stage; None if it has none.
        tapes: the tapes, by number, of the stages for whose weights this rank computes gradients.
        route: the route of the backward pass.
        share: this rank's share of the route.
    """

    inputs: tf.Tensor
    outputs: tf.Tensor
    values: list[tf.Tensor]
    records: list[Any]
    tapes: dict[int, tf.GradientTape]
    route: Route
    share: Share


@dataclasses.dataclass
class Scan:
    """Run the stages of a chain forward and backward.

    Attributes:
        chain: the chain of the net.
        functional: the Keras model that the chain was made from.
        levels: the choice of levels.
        ranks: the ranks that share the backward pass; None is this rank alone.
    """

    chain: stages.Chain
    functional: keras.Model
    levels: Levels
    ranks: ProcessSet | None = None

    def __post_init__(self) -> None:
        self._depth = None if self.ranks is None else Depth(self.chain, self.ranks)

    def forward(self, inputs: tf.Tensor) -> Forward:
        """Run all stages, as in training."""
        route = Route.of(self.chain)
        if self._depth is None:
            share = Share(range(route.positions), route.positions)
        else:
            share = self._depth.share(route)
        forward = Forward(inputs, inputs, [], [], {}, route, share)
        for number, stage in enumerate(self.chain.stages):
            if route.weight_positions.get(number) in share.positions:
                # A tape of this layer alone, for the gradients of its weights.
                with tf.GradientTape() as forward.tapes[number]:
                    inputs, record = stage.run(tf.stop_gradient(inputs), True)
            else:
                inputs, record = stage.run(inputs, True)
            forward.values.append(inputs)
            forward.records.append(record)
        forward.outputs = inputs
        return forward

    def backward(self, forward: Forward, last: tf.Tensor | None) -> dict[int, tf.Tensor]:
        """Return the gradients of the weights, by the ids of their variables.

        Args:
            forward: the forward pass.
            last: dl/dh of the outputs of the last stage.
        """
        route = forward.route
        if not route.weight_positions or last is None:
            return {}
        ranks = self._depth if forward.share.is_shared else None
        if ranks:
            pairs = zip(self.chain.stages, forward.records, strict=True)
            ranks.check(forward.inputs, [mask for stage, mask in pairs if stage.kind == "dropout"])
        vectors = self._vectors(forward, last, ranks)
        by_stage: dict[int, list[Any]] = {}
        for number, tape in forward.tapes.items():
            values = forward.values[number]
            gradient = tf.reshape(vectors[route.weight_positions[number]], tf.shape(values))
            weights = self.chain.stages[number].layer.trainable_weights
            by_stage[number] = tape.gradient(values, weights, output_gradients=gradient)
        if ranks:
            by_stage = ranks.gather(route, by_stage)
        gradients: dict[int, Any] = {}
        for number, gradients_of_stage in by_stage.items():
            weights = self.chain.stages[number].layer.trainable_weights
            for weight, gradient in zip(weights, gradients_of_stage, strict=True):
                gradients[id(weight)] = add(gradients.get(id(weight)), gradient)
        return gradients

    def _vectors(
        self, forward: Forward, last: tf.Tensor, ranks: Depth | None
    ) -> dict[int, tf.Tensor]:
        """Return dl/dh at each position for which this rank computes gradients of weights."""
        route, share = forward.route, forward.share
        if not share.positions:
            return {}
        numbers = route.numbers[share.positions.start : share.positions.stop]
        positions = sorted(set(route.weight_positions.values()) & set(share.positions))
        places = [position - share.positions.start for position in positions]
        work = _Work(self.chain, numbers, places, share.has_successor, self.levels)
        inputs = [last, *(forward.records[number] for number in numbers)]
        dtypes = [last.dtype] * len(positions)
        if share.is_first:
            vectors = numpy_call(work.scan, inputs, dtypes + [last.dtype] * share.has_successor)
            if ranks and share.has_successor:
                ranks.exchange([vectors.pop()], route, share, last)
        else:
            assert ranks is not None
            # Stateful ops of a function run in program order: a rank computes its own part before
            # it waits for a message, and `begin` runs before `sweep`.
            product = numpy_call(
                work.begin, inputs, [last.dtype, tf.int32, tf.int32] * share.has_successor
            )
            vector = ranks.exchange(product, route, share, last)
            vectors = numpy_call(work.sweep, [vector], dtypes)
        return dict(zip(positions, vectors, strict=True))


@dataclasses.dataclass
class _Work:
    """Run this rank's part of a scan, in NumPy.

    Attributes:
        chain: the chain of the net.
        numbers: the numbers of the stages whose Jacobians it multiplies, from the loss back.
        places: indices into `numbers`; the results are the vectors before these stages.
        has_successor: whether another rank continues the backward pass.
        levels: the choice of levels.
        pending: the plan and the products of `begin`, for `sweep`.
    """

    chain: stages.Chain
    numbers: Sequence[int]
    places: Sequence[int]
    has_successor: bool
    levels: Levels
    pending: tuple[tree.Plan, list[Any]] | None = None

    def scan(self, last: np.ndarray, *records: np.ndarray) -> list[Any]:
        """Run the span at the loss; a vector for the next rank comes last, if there is one."""
        elements, levels = self._elements(last, records)
        vector = np.ascontiguousarray(last).reshape(len(last), -1)
        # No gradient contains the Jacobian before the first weights.
        prefixes = tree.scan([vector, *elements, None], compose, levels, pool().map)
        vectors = [prefixes[place + 1] for place in self.places]
        return [*vectors, prefixes[-1]] if self.has_successor else vectors

    def begin(self, last: np.ndarray, *records: np.ndarray) -> list[np.ndarray]:
        """Reduce the span to one matrix, before a vector enters it; return the matrix, packed."""
        elements, levels = self._elements(last, records)
        if not self.has_successor:
            steps = tree.plan(len(elements) + 1, levels)
            self.pending = steps, tree.reduce([*elements, None], steps, compose, pool().map)
            return []
        steps, full = tree.plan(len(elements), levels), tree.plan(len(elements), with_total=True)
        below = dataclasses.replace(full, up=full.up[: steps.levels])
        above = dataclasses.replace(full, up=full.up[steps.levels :])
        products = tree.reduce(elements, below, compose, pool().map)
        self.pending = steps, products
        return pack(tree.reduce(products, above, compose, pool().map)[-1])

    def sweep(self, vector: np.ndarray) -> list[Any]:
        """Return the vectors of the span, given the vector that enters it."""
        assert self.pending is not None
        (steps, products), self.pending = self.pending, None
        before = tree.sweep(products, steps, compose, vector, pool().map)
        return [before[place] for place in self.places]

    def _elements(
        self, last: np.ndarray, records: Sequence[np.ndarray]
    ) -> tuple[list[Element], int]:
        results = pool().map(lambda i, record: self.chain.stages[i].element(record),
                          self.numbers, records)  # fmt: skip
        elements = list(results)
        return elements, self.levels(elements, len(last)) if elements else 0


@functools.cache
def pool() -> concurrent.futures.ThreadPoolExecutor:
    """Return a pool of threads. SciPy releases the GIL in products."""
    return concurrent.futures.ThreadPoolExecutor(
        threads.usable_cpus(), thread_name_prefix="ringar-scan"
    )


def add(left: tf.Tensor | None, right: tf.Tensor | None) -> tf.Tensor | None:
    """Return the sum of two gradients, each of which may be None."""
    if left is None or right is None:
        return right if left is None else left
    return tf.convert_to_tensor(left) + tf.convert_to_tensor(right)
