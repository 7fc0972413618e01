"""Reduce-scatter of gradients: each rank runs the optimizer on its slice of every variable (ZeRO).

The stages 1 and 2 of Rajbhandari et al. 2020 (1910.02054, section 5). On N ranks, with a model of P
parameters, a training step is

    backward pass      gradients, in the buckets of `buckets.py`, last layer first
    reduce-scatter     rank r gets slice r of each gradient           (N-1)/N P sent by each rank
    optimizer          on slice r of each variable; slots exist for the slice only, P/N per slot
    all-gather         of the new slices, first layer first           (N-1)/N P

Together a rank sends what an allreduce of the gradients sends. The weights are
gathered by `ringar.keras.variable_slices`. The sums are those of an allreduce, element by element,
and the optimizers that are accepted treat each element by itself, so that training is that of
unsharded data parallelism.

A rank that has no data left still holds the only slots of its slices. So it repeats not only the
reduction, but the whole step of the optimizer, with gradients of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ringar.collectives import (
    Average,
    Max,
    Sum,
    grouped_allreduce,
    grouped_reducescatter,
    shares,
)
from ringar.collectives.branches import act_if
from ringar.collectives.compiled import is_compiling
from ringar.collectives.compression import Compression
from ringar.job.process_sets import or_all
from ringar.keras import buckets, share
from ringar.keras.exchange import Reducer, Variables
from ringar.keras.reduction import Reduction, spread_overflow, tensor_like
from ringar.keras.variable_slices import VariableSlices
from ringar.sharding.variable_slice import VariableSlice

if TYPE_CHECKING:
    from ringar.collectives.shares import Control
    from ringar.sharding.slice_ranks import SliceRanks


class ReduceScatter(Reducer):
    """Reduce-scatter gradients: each rank gets its slices of them.

    Args:
        stage: which variables are cut into slices.
        reduction: how gradients are reduced.
        slices: this rank's slices of variables.
    """

    def __init__(self, stage: str, reduction: Reduction, slices: VariableSlices) -> None:
        self.op, self.process_set = reduction.op, reduction.process_set
        self.grid = slices.slicing.grid
        self._stage, self._reduction, self._slices = stage, reduction, slices
        self._holder: Any = None  # whose `apply` takes the step that is traced or runs
        self._answer: tf.Tensor | None = None  # while this rank repeats a step
        self._start: tf.Tensor | None = None  # the answer in the step that is traced or runs

    def note_holder(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Note the optimizer whose `apply` an idle rank repeats."""
        self._holder = optimizer

    # AutoGraph has nothing to convert here, and conversion slows down tracing.
    def __call__(
        self, gradients: Sequence[Any], variables: Variables = None, loss_scale: Any = None
    ) -> list[Any]:
        """Reduce `gradients`, and return this rank's slices; sparse ones become dense.

        Raises:
            ValueError: the variables are not known.
        """
        if self.is_alone or all(gradient is None for gradient in gradients):
            return self._reduction(gradients, variables, loss_scale)
        if variables is None:
            raise ValueError(
                "`trainable_variables` must be passed with the gradients, or the optimizer be "
                "built: they tell the slices. Received: trainable_variables=None"
            )
        dense = [
            None if gradient is None else tensor_like(variable, gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        for part in self._slices:
            part.pending = None  # of a step whose trace has failed
        answer = self._answer
        if answer is None:
            # A graph whose iterator has ended runs what does not depend on the batch.
            with tf.control_dependencies([next(g for g in reversed(dense) if g is not None)]):
                answer = self._tell(dense, variables)
        self._start = answer
        reduced = self._scattered(dense, self._slices.parts(variables), answer[0])
        if loss_scale is not None:
            spread_overflow(reduced, range(len(reduced)), self.process_set)
        return reduced

    def _tell(self, gradients: list[Any], variables: Sequence[Any]) -> tf.Tensor:
        """Tell the other ranks this rank's rows; record the step; return their answer."""
        holder = self._holder

        def repeat(zeros: Sequence[Any]) -> tf.Tensor:
            answer = self._ask(self._reduction.control(share.rows(), variables, begins_step))

            def step() -> None:
                self._answer = answer
                try:
                    holder.apply(zeros, variables)
                finally:
                    self._answer = None

            # Where all ranks are idle, there is no step.
            act_if(answer[1] < float(or_all(self.process_set).size()), step)
            return answer[1]

        begins_step = share.record(repeat, gradients, variables)
        return self._ask(self._reduction.control(share.rows(), variables, begins_step))

    def _ask(self, control: Control, label: str = "gradients") -> tf.Tensor:
        return shares.allreduce(
            [], control, self.op, compression=Compression.none, algorithm=None,
            prescale_factor=1.0, postscale_factor=1.0, name=f'{label}/shard="{self._stage}"',
            process_set=self.process_set,
        )[1]  # fmt: skip

    def _scattered(self, dense: list[Any], parts: Sequence[Any], weight: tf.Tensor) -> list[Any]:
        """Return this rank's slices of the reduced gradients, and the others whole."""
        reduced: list[Any] = [None] * len(dense)
        for ranks in self._slices.slicing.kinds:
            cut = [g if _is_of(p, ranks) else None for g, p in zip(dense, parts, strict=True)]
            for number, bucket in enumerate(self._reduction.plan(cut)):
                flat = [tf.reshape(dense[i], [-1]) for i in bucket.indices]
                name = f"gradients/slices_{number}:{bucket.label}"
                slices = self._reduced(self._weighted(flat, weight), ranks, name)
                for index, tensor in zip(bucket.indices, slices, strict=True):
                    reduced[index] = parts[index].padded(tensor)
            # Values that Keras writes over variables, as in `Reduction`.
            self._reduce_maxima(reduced, dense, parts, ranks)
        return reduced

    def _reduced(self, tensors: list[tf.Tensor], ranks: SliceRanks, name: str) -> list[tf.Tensor]:
        """Return this rank's slices of flat tensors, reduced over all copies."""
        last = self._reduction.postscale_factor
        if self.op is Sum:
            last /= ranks.repeats
        is_only_copy = ranks.replicas is None
        slices = grouped_reducescatter(
            tensors,
            self.op,
            compression=self._reduction.of_dense,
            prescale_factor=self._reduction.prescale_factor,
            postscale_factor=last if is_only_copy else 1.0,
            name=name,
            process_set=ranks.among,
        )
        if is_only_copy:
            return list(slices)
        return grouped_allreduce(
            slices,
            self.op,
            compression=self._reduction.of_dense,
            postscale_factor=last,
            name=f"{name}/replicas",
            process_set=ranks.replicas,
        )

    def _reduce_maxima(
        self, reduced: list[Any], dense: list[Any], parts: Sequence[Any], ranks: SliceRanks
    ) -> None:
        """Put the maxima of values that overwrite variables into `reduced`."""
        indices = [
            index
            for index, (gradient, part) in enumerate(zip(dense, parts, strict=True))
            if gradient is not None
            and not isinstance(part, VariableSlice)
            and self._slices.slicing.of(part) is ranks
        ]
        if not indices:
            return
        maxima = grouped_allreduce(
            [dense[i] for i in indices],
            op=Max,
            name=f"overwrites:{buckets.label(reversed(indices))}",
            process_set=ranks.copies,
        )
        for index, maximum in zip(indices, maxima, strict=True):
            reduced[index] = maximum

    def _weighted(self, tensors: list[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
        """Return the tensors times the weight of this rank, which mostly is 1."""
        if self.op is not Average or self._answer is not None:  # zeros
            return tensors

        def times() -> list[tf.Tensor]:
            return [shares.weighted(tensor, weight) for tensor in tensors]

        if is_compiling():  # XLA computes it with the gradients
            return times()
        weighted = tf.cond(tf.equal(weight, 1.0), lambda: [tf.identity(t) for t in tensors], times)
        for result, tensor in zip(weighted, tensors, strict=True):
            result.set_shape(tensor.shape)
        return list(weighted)

    def behind_start(self) -> AbstractContextManager[Any]:
        """Return a context whose ops, such as the count of steps, need this step's batch."""
        has_start = self._start is not None and not tf.executing_eagerly()
        return tf.control_dependencies([self._start]) if has_start else nullcontext()


def _is_of(part: Any, ranks: SliceRanks) -> bool:
    return isinstance(part, VariableSlice) and part.ranks is ranks
