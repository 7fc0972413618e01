"""Sharded data parallelism: each rank runs the optimizer on its slice of every variable (ZeRO).

The stages 1 and 2 of Rajbhandari et al. 2020 (1910.02054, section 5). On N ranks, with a model of P
parameters, a training step is

    backward pass      gradients, in the buckets of `buckets.py`, last layer first
    reduce-scatter     rank r gets slice r of each gradient           (N-1)/N P sent by each rank
    optimizer          on slice r of each variable; slots exist for the slice only, P/N per slot
    all-gather         of the new slices, first layer first           (N-1)/N P

Together a rank sends what an allreduce of the gradients sends. Variables are cut by
`ringar.sharding.variable_slice`. The sums are those of an allreduce, element by element, and the
optimizers that are accepted treat each element by itself, so that training is that of unsharded
data parallelism. Norms of gradients, for clipping, are sums over the ranks.

A rank that has no data left still has the only slots of its slices. It repeats the whole step of
the optimizer, with gradients of zero, in place of the reduction alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import keras
import tensorflow as tf

from ringar.collectives import (
    Average,
    Max,
    Sum,
    allreduce,
    branches,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    shares,
)
from ringar.collectives.compiled import is_compiling
from ringar.collectives.compression import Compression, has_state
from ringar.errors import UnsupportedError
from ringar.job import membership, place
from ringar.job.process_sets import or_all
from ringar.keras import buckets, share
from ringar.keras.exchange import Exchange
from ringar.keras.reduction import Reduction, tensor_like
from ringar.sharding.slice_ranks import Slicing
from ringar.sharding.slots import NOT_ELEMENTWISE, inner_optimizer, with_nested
from ringar.sharding.variable_slice import VariableSlice

if TYPE_CHECKING:
    from ringar.collectives.shares import Control
    from ringar.job.process_sets import ProcessSet
    from ringar.keras.offload import Offload
    from ringar.sharding.grid import Grid
    from ringar.sharding.slice_ranks import SliceRanks

Stage = Literal["optimizer", "gradients", "weights"]
"""What is cut into slices."""

STAGES = ("optimizer", "gradients", "weights")
_REFUSED = (*NOT_ELEMENTWISE, "MultiOptimizer")


class Sharded(Exchange):
    """Reduce-scatter gradients, let the optimizer train slices, and all-gather the weights.

    Args:
        stage: what is cut into slices.
        reduction: how gradients are reduced.
        slicing: the ranks among which each variable is cut; by default those that train together.
        offload: what makes the slots; None: Keras, beside the variables.
    """

    def __init__(
        self,
        stage: Stage,
        reduction: Reduction,
        slicing: Slicing | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.stage = stage
        self.offload = offload
        self.op, self.process_set = reduction.op, reduction.process_set
        self._reduction = reduction
        self._slicing = slicing or Slicing(reduction.process_set)
        self._slices: dict[Any, VariableSlice] = {}
        self._holder: Any = None  # whose `apply` takes the step that is traced or runs
        self._answer: tf.Tensor | None = None  # while this rank repeats a step
        self._begun: tf.Tensor | None = None  # the answer in the step that is traced or runs

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank, which then trains whole variables."""
        return self._reduction.is_alone

    @property
    def description(self) -> dict[str, object]:
        """The settings that must be the same on all ranks."""
        return {
            **self._reduction.description,
            "shard": self.stage,
            "shard_ranks": self._slicing.shard_ranks,
            "grid": None if self.grid is None else str(self.grid),
            "offload": None if self.offload is None else self.offload.kind,
        }

    @property
    def grid(self) -> Grid | None:
        """The grid on which the model is split, if it is."""
        return self._slicing.grid

    @property
    def ranks(self) -> ProcessSet | None:
        """The ranks that hold different examples."""
        return self.process_set if self.grid is None else self.grid.data_set

    @property
    def chosen(self) -> dict[str, object]:
        """The settings that the user has chosen, or that change nothing here."""
        return {**self._reduction.chosen, "algorithm": None}

    @property
    def slices(self) -> list[VariableSlice]:
        """This rank's slices, in the order of the variables."""
        return list(self._slices.values())

    def renewed(self) -> Sharded:
        """Return an exchange with these settings, and without the state of this one."""
        offload = None if self.offload is None else self.offload.renewed()
        return Sharded(self.stage, self._reduction.renewed(), self._slicing, offload)

    def build(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any] | None) -> None:
        """Check that all ranks have room for their slots, once they are made."""
        if self.offload is not None:
            if variables is not None and not optimizer.built:
                optimizer.build(variables)
            self.offload.meet(self.process_set)

    def slot(self, part: Any, name: str, initializer: Any) -> Any | None:
        """Make a slot where slots are offloaded to."""
        return None if self.offload is None else self.offload.slot(part, name, initializer)

    def parts(self, variables: Sequence[Any]) -> list[Any]:
        """Return the slices of `variables`; those that gradients overwrite stay whole."""
        return list(variables) if self.is_alone else [self._part(v) for v in variables]

    def _part(self, variable: Any) -> Any:
        if isinstance(variable, VariableSlice) or is_overwritten(variable):
            return variable
        tensor = variable.value if isinstance(variable, keras.Variable) else variable
        if tensor._unique_id not in self._slices:
            found = VariableSlice(variable, self._slicing.of(variable))
            self._slices[tensor._unique_id] = found
        return self._slices[tensor._unique_id]

    def applied_by(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Take the optimizer whose `apply` an idle rank repeats."""
        self._holder = optimizer

    # AutoGraph has nothing to convert here, and conversion slows down tracing.
    @tf.autograph.experimental.do_not_convert
    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None = None,
        loss_scale: tf.Tensor | None = None,
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
        for each in self._slices.values():
            each.pending = None  # of a step whose trace has failed
        answer = self._answer
        if answer is None:
            # A graph whose iterator has ended runs what does not depend on the batch.
            with tf.control_dependencies([next(g for g in reversed(dense) if g is not None)]):
                answer = self._tell(dense, variables)
        self._begun = answer
        reduced = self._scattered(dense, self.parts(variables), answer[0])
        if loss_scale is not None:
            self._spread_overflow(reduced)
        return reduced

    def _tell(self, gradients: list[Any], variables: Sequence[Any]) -> tf.Tensor:
        """Tell the other ranks this rank's rows; record the step; return their answer."""
        holder = self._holder

        def repeat(zeros: Sequence[Any]) -> tf.Tensor:
            answer = self._ask(self._reduction.control(share.rows(), variables, begins))

            def step() -> tf.Tensor:
                self._answer = answer
                try:
                    holder.apply(zeros, variables)
                finally:
                    self._answer = None
                return tf.constant(0)

            # Where all ranks are idle, there is no step.
            is_step = answer[1] < float(or_all(self.process_set).size())
            tf.cond(is_step, step, lambda: tf.constant(0))
            return answer[1]

        begins = share.record(repeat, gradients, variables)
        return self._ask(self._reduction.control(share.rows(), variables, begins))

    def _ask(self, control: Control, what: str = "gradients") -> tf.Tensor:
        return shares.allreduce(
            [], control, self.op, compression=Compression.none, algorithm=None,
            prescale_factor=1.0, postscale_factor=1.0, name=f'{what}/shard="{self.stage}"',
            process_set=self.process_set,
        )[1]  # fmt: skip

    def _scattered(self, dense: list[Any], parts: Sequence[Any], weight: tf.Tensor) -> list[Any]:
        """Return this rank's slices of the reduced gradients, and the others whole."""
        reduced: list[Any] = [None] * len(dense)
        for ranks in self._slicing.kinds:
            cut = [g if _is_of(p, ranks) else None for g, p in zip(dense, parts, strict=True)]
            for number, bucket in enumerate(self._reduction.plan(cut)):
                flat = [tf.reshape(dense[i], [-1]) for i in bucket.indices]
                name = f"gradients/slices_{number}:{bucket.label}"
                own = self._reduced(self._weighted(flat, weight), ranks, name)
                for index, tensor in zip(bucket.indices, own, strict=True):
                    reduced[index] = parts[index].padded(tensor)
            # Values that Keras writes over variables, as in `Reduction`.
            self._reduce_maxima(reduced, dense, parts, ranks)
        return reduced

    def _reduced(self, tensors: list[tf.Tensor], ranks: SliceRanks, name: str) -> list[tf.Tensor]:
        """Return this rank's slices of flat tensors, reduced over all copies."""
        last = self._reduction.postscale_factor
        if self.op is Sum:
            last /= ranks.repeats
        alone = ranks.replicas is None
        own = grouped_reducescatter(
            tensors,
            self.op,
            compression=self._reduction.of_dense,
            prescale_factor=self._reduction.prescale_factor,
            postscale_factor=last if alone else 1.0,
            name=name,
            process_set=ranks.among,
        )
        if alone:
            return list(own)
        return grouped_allreduce(
            own,
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
        its = [
            index
            for index, (gradient, part) in enumerate(zip(dense, parts, strict=True))
            if gradient is not None
            and not isinstance(part, VariableSlice)
            and self._slicing.of(part) is ranks
        ]
        if not its:
            return
        maxima = grouped_allreduce(
            [dense[i] for i in its],
            op=Max,
            name=f"overwrites:{buckets.label(reversed(its))}",
            process_set=ranks.copies,
        )
        for index, maximum in zip(its, maxima, strict=True):
            reduced[index] = maximum

    def _weighted(self, tensors: list[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
        """Return the tensors times the weight of this rank, which mostly is 1."""
        if self.op is not Average or self._answer is not None:  # zeros
            return tensors

        def times() -> list[tf.Tensor]:
            return [tensor * tf.cast(weight, tensor.dtype) for tensor in tensors]

        if is_compiling():  # XLA computes it with the gradients
            return times()
        weighted = tf.cond(tf.equal(weight, 1.0), lambda: [tf.identity(t) for t in tensors], times)
        for one, tensor in zip(weighted, tensors, strict=True):
            one.set_shape(tensor.shape)
        return list(weighted)

    def _spread_overflow(self, reduced: list[Any]) -> None:
        """Make all ranks skip the step if one gradient of one rank overflowed."""
        present = [i for i, gradient in enumerate(reduced) if gradient is not None]
        finite = [tf.reduce_all(tf.math.is_finite(reduced[i])) for i in present]
        any_bad = allreduce(
            tf.cast(tf.logical_not(tf.reduce_all(finite)), tf.float32),
            Max,
            name="gradients/overflow",
            process_set=self.process_set,
        )
        nan_if_bad = tf.where(any_bad > 0, float("nan"), 0.0)
        first = reduced[present[0]]
        reduced[present[0]] = first + tf.cast(nan_if_bad, first.dtype)

    def begun(self) -> AbstractContextManager[Any]:
        """Return a context whose ops, such as the count of steps, need this step's batch."""
        known = self._begun is not None and not tf.executing_eagerly()
        return tf.control_dependencies([self._begun]) if known else nullcontext()

    def clipped(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[Any],
        clip: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """Clip by the norms of whole gradients, with the formulas of Keras."""
        each, together = optimizer.clipnorm, optimizer.global_clipnorm
        if self.is_alone or not (each or together):
            return clip(gradients)
        wide = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
        squares = allreduce(
            tf.stack([tf.reduce_sum(tf.square(tf.cast(g, wide))) for g in gradients]),
            Sum,
            name="gradients/norms",
            process_set=self._slicing.once,
        )
        if each:
            divisors = tf.unstack(tf.maximum(tf.sqrt(squares), each))
            return [
                g * tf.cast(each, g.dtype) / tf.cast(divisor, g.dtype)
                for g, divisor in zip(gradients, divisors, strict=True)
            ]
        norm = tf.sqrt(tf.reduce_sum(squares))
        scale = together * tf.minimum(1.0 / norm, 1.0 / together) + (norm - norm)
        return [g * tf.cast(scale, g.dtype) for g in gradients]

    @tf.autograph.experimental.do_not_convert
    def publish(self) -> None:
        """Gather the slices that were assigned into the model's variables, first layer first."""
        slices = self.slices
        for ranks in self._slicing.kinds:
            changed = [
                s.whole if s.pending is not None and s.ranks is ranks else None for s in slices
            ]
            plan = self._reduction.plan(changed)
            for number, bucket in enumerate(reversed(plan)):
                name = f"weights/slices_{number}:{bucket.label}"
                _gather([slices[i] for i in bucket.indices], ranks, name)

    def applied(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Constrain the whole variables, as Keras does after a step."""
        if self.is_alone:
            return
        for gradient, variable in zip(gradients, variables or (), strict=False):
            constraint = getattr(variable, "constraint", None)
            if gradient is not None and constraint is not None and not is_overwritten(variable):
                variable.assign(constraint(variable))


def check_elementwise(optimizer: keras.optimizers.Optimizer) -> None:
    """Check that an optimizer treats each element by itself.

    Args:
        optimizer: the optimizer, built or not.

    Raises:
        ValueError: it needs whole variables.
    """
    for one in with_nested(inner_optimizer(optimizer)):
        names = [base.__name__ for base in type(one).__mro__]
        if found := next((name for name in names if name in _REFUSED), None):
            nested = found == "MultiOptimizer"
            reason = "has optimizers of its own" if nested else "computes with whole variables"
            raise ValueError(
                f"`optimizer` must treat each element by itself with `shard`: {found} {reason}. "
                f"Received: {type(one).__name__}. Use Adam, AdamW, SGD, RMSprop or Lion, for "
                "example, or leave out `shard`."
            )


def check(optimizer: keras.optimizers.Optimizer, reduction: Reduction) -> None:
    """Check that an optimizer can be sharded.

    Args:
        optimizer: the optimizer, built or not.
        reduction: how its gradients are reduced.

    Raises:
        ValueError: it needs whole variables, or an argument does not go with `shard`.
        UnsupportedError: the job is elastic.
    """
    check_elementwise(optimizer)
    if has_state(reduction.compression):
        raise ValueError(
            "`compression` must be none, fp16 or bf16 with `shard`: PowerSGD sums whole matrices. "
            f"Received: {reduction.compression}"
        )
    if reduction.algorithm is not None:
        raise ValueError(
            "`algorithm` must be None with `shard`: it is one of allreduces, of which there are "
            f"none. Received: algorithm={reduction.algorithm!r}"
        )
    if membership.is_elastic():
        raise UnsupportedError(
            f"rank {place.rank()} | DistributedOptimizer: expected a job whose ranks stay with "
            "`shard`, since each has slots that no other has, received one whose ranks may "
            "change; leave out --min-np"
        )


def _gather(slices: Sequence[VariableSlice], ranks: SliceRanks, name: str) -> None:
    """Gather what the ranks have assigned to slices into their variables."""
    # Compiled code knows the shapes before, and needs equal numbers of rows.
    padded = is_compiling()
    gathered = grouped_allgather(
        [s.read() if padded else s.read()[: s.count] for s in slices],
        name=name,
        process_set=ranks.among,
    )
    for one, flat in zip(slices, gathered, strict=True):
        flat = one.joined(flat) if padded else flat
        one.whole.assign(tf.reshape(flat, one.whole.shape))
        one.pending = None
    branches.note(gathered)


def _is_of(part: Any, ranks: SliceRanks) -> bool:
    return isinstance(part, VariableSlice) and part.ranks is ranks


def is_overwritten(variable: Any) -> bool:
    """Return whether Keras writes gradients over a variable."""
    return bool(getattr(variable, "overwrite_with_gradient", False))
