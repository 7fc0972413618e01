"""The reduction of gradients over the ranks, for the optimizer and the tape.

Dense gradients are reduced in the buckets of `buckets.py`, last layer first, one grouped allreduce
each. Sparse gradients (`tf.IndexedSlices`, from an Embedding) are gathered, and equal rows added
(`sparse.py`). "Gradients" with which Keras overwrites variables (the scales of float8
training) are combined by maximum, as Keras does. With PowerSGD, dense gradients that it compresses
are reduced as factors (`ringar.keras.low_rank`): all P together, then all Q together.

Each rank counts with its share of the rows of the global batch (`ringar.keras.share`): a control
vector travels in front of each bucket (`ringar.collectives.shares`). The answer to the first one
tells the weight of this rank. Sparse gradients are multiplied by it before they are gathered, those
that PowerSGD compresses before its errors are added. With `op=ringar.Sum` gradients are added as
they are.

The name of a bucket lists the indices of its variables. If a gradient is None on one rank only, the
names differ, and all ranks get an error instead of a sum of gradients of different variables.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ringar.collectives import (
    Average,
    Max,
    Sum,
    allreduce,
    compiled,
    grouped_allreduce,
    shares,
)
from ringar.collectives.call import checked_algorithm
from ringar.collectives.compression import Compression, has_state
from ringar.collectives.shares import NO_SHARES, Control
from ringar.job import membership
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import buckets, share, sparse, tuned
from ringar.keras.exchange import Reducer, Variables
from ringar.keras.low_rank import Combine, LowRank
from ringar.sharding.cut import cut_of

if TYPE_CHECKING:
    from ringar.collectives.ops import ReduceOp

SaveState = Callable[[tf.Tensor], None]
"""A function that writes the new state of a compression if its argument, a bool, is true."""


@dataclass(frozen=True)
class Reduction(Reducer):
    """Reduce gradients over the ranks; `DistributedOptimizer` documents the fields.

    Attributes:
        label: the name of the values that are reduced, in the names of collectives.
    """

    op: ReduceOp
    compression: Any
    algorithm: str | None
    process_set: ProcessSet | None
    bucket_bytes: int | None
    prescale_factor: float
    postscale_factor: float
    sparse_as_dense: bool
    label: str = "gradients"
    low_rank: LowRank | None = field(init=False)

    def __post_init__(self) -> None:
        low_rank = LowRank(self.compression) if has_state(self.compression) else None
        object.__setattr__(self, "low_rank", low_rank)
        checked_algorithm(self.algorithm)
        if self.op not in (Average, Sum):
            raise ValueError(
                f"`op` must be ringar.Average or ringar.Sum for gradients. Received: op={self.op}"
            )
        if self.bucket_bytes is not None and self.bucket_bytes < 1:
            raise ValueError(
                "`bucket_bytes` must be a positive number of bytes. "
                f"Received: bucket_bytes={self.bucket_bytes}"
            )

    @property
    def size(self) -> int:
        """The number of ranks that reduce together."""
        return or_all(self.process_set).size()

    @property
    def is_identity(self) -> bool:
        """Whether the reduction changes no sums: there is one rank for good, and no factor."""
        return self.is_alone and self.prescale_factor == 1.0 and self.postscale_factor == 1.0

    @property
    def description(self) -> dict[str, object]:
        """The settings that must be the same on all ranks."""
        names = ("op", "compression", "algorithm", "bucket_bytes", "prescale_factor",
                 "postscale_factor", "sparse_as_dense")  # fmt: skip
        settings = {name: getattr(self, name) for name in names}
        return {"function": "ringar.DistributedOptimizer", **settings}

    @property
    def chosen(self) -> dict[str, object]:
        """The settings that the user has chosen."""
        defaults = {"bucket_bytes": None, "algorithm": None, "compression": Compression.none}
        settings = {name: getattr(self, name) for name in defaults}
        return {name: value for name, value in settings.items() if value is not defaults[name]}

    def renewed(self) -> Reduction:
        """Return a reduction with these settings, and without the state of this one."""
        return replace(self)

    def plain(self, label: str) -> Reduction:
        """Return a reduction of other values over the same ranks, which compresses nothing."""
        return replace(self, compression=Compression.none, label=label)

    # AutoGraph has nothing to convert here, and conversion slows down tracing.
    def __call__(
        self, gradients: Sequence[Any], variables: Variables = None, loss_scale: Any = None
    ) -> list[Any]:
        """Reduce `gradients` over the ranks.

        Args:
            gradients: tensors, `tf.IndexedSlices` or None; the same ones are None on every rank.
            variables: the variables of the gradients, if they are known.
            loss_scale: the factor in the gradients, if it changes from step to step.

        Returns:
            A list like `gradients`, where sparse ones may have become dense.

        Raises:
            NotInitializedError: before `ringar.init()`.
            ValueError: the compression has state, and the variables are not known.
        """
        reduced, save_state = self.reduce(gradients, variables, loss_scale)
        if save_state is not None:
            save_state(all_finite(reduced))
        return reduced

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None = None,
        loss_scale: tf.Tensor | None = None,
        control: Control | None = None,
    ) -> tuple[list[Any], SaveState | None]:
        """Reduce `gradients`, and leave the state of the compression to the caller.

        Args:
            gradients: as for the call.
            variables: as for the call.
            loss_scale: as for the call.
            control: what this rank tells the others; None: what the training step says, and the
                reduction is recorded as a part of it.

        Returns:
            The reduced gradients, and a function that writes the new state of the compression if
            its argument, a bool, is true; None without state. All ranks must pass the same.
        """
        if self.is_identity or all(gradient is None for gradient in gradients):
            return [self.merged(gradient) for gradient in gradients], None
        reduced = list(gradients)
        self._refuse_parts(variables or ())
        control = control or self._control(reduced, variables, loss_scale)
        overwritten = {i for i, v in enumerate(variables or ()) if is_overwritten(v)}
        dense: list[Any] = [None] * len(reduced)
        maxima: list[Any] = [None] * len(reduced)
        slices: list[int] = []
        for index, gradient in enumerate(reduced):
            if self._stays_sparse(gradient) and index not in overwritten:
                slices.append(index)
            elif gradient is not None:
                tensor = tensor_like(variables[index] if variables else None, gradient)
                (maxima if index in overwritten else dense)[index] = tensor
        factored = self._take_factored(dense)
        weight = self._reduce_dense(reduced, dense, control)
        if overwritten:  # values, not sums: neither compressed nor scaled
            self._reduce_maxima(reduced, maxima)
        for index in reversed(slices):
            name = f"{self.label}/sparse_{index}"
            weighted = _weighted(reduced[index], weight)
            reduced[index] = sparse.reduced(weighted, name, self.process_set, self._factors())
        if not factored:
            return reduced, None
        factored = {index: _weighted(g, weight) for index, g in factored.items()}
        return reduced, self._reduce_factored(reduced, factored, variables, loss_scale)

    def _refuse_parts(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            cut = cut_of(variable)
            if cut is not None and self.process_set is not cut.grid.data_set:
                raise ValueError(
                    "`grid` must be given for a model with split layers: "
                    "ringar.DistributedOptimizer(..., grid=grid). "
                    f"Received: none, and a part of variable {variable.path}."
                )

    def _stays_sparse(self, gradient: Any) -> bool:
        if not isinstance(gradient, tf.IndexedSlices):
            return False
        # A gathered gradient has the number of ranks in its graph.
        as_dense = self.sparse_as_dense or membership.is_elastic()
        return not (as_dense or sparse.is_better_dense(gradient))

    def _take_factored(self, dense: list[Any]) -> dict[int, Any]:
        """Remove from `dense`, and return by index, the gradients that are reduced as factors."""
        factored: dict[int, Any] = {}
        if self.low_rank is not None and not self.is_alone:
            for index, gradient in enumerate(dense):
                if gradient is not None and self.low_rank.compresses(gradient):
                    factored[index] = gradient
                    dense[index] = None
        return factored

    def _reduce_factored(
        self,
        reduced: list[Any],
        factored: dict[int, Any],
        variables: Sequence[Any] | None,
        loss_scale: tf.Tensor | None,
    ) -> SaveState:
        """Put the reduced gradients of `factored` into `reduced`; return the saver of the state.

        The gradients are multiplied by the weight of this rank already: errors of earlier steps,
        which had their own weights, are added to them.
        """
        assert self.low_rank is not None
        if variables is None:
            raise ValueError(
                "`trainable_variables` must be passed with the gradients, or the optimizer be "
                "built: PowerSGD keeps its state by variable. Received: trainable_variables=None"
            )
        label = buckets.label(reversed(factored))
        mean = self._options() | {"op": Average, "prescale_factor": 1.0, "postscale_factor": 1.0}

        def exchange(factor: str, options: dict[str, Any]) -> Combine:
            return lambda tensors: grouped_allreduce(
                tensors,
                name=f"{self.label}/powersgd_{factor}:{label}",
                process_set=self.process_set,
                **options,
            )

        results, save_state = self.low_rank.reduce(
            list(factored.values()),
            [variables[index] for index in factored],
            average=exchange("p", mean),
            combine=exchange("q", self._options()),
            loss_scale=loss_scale,
        )
        for index, result in zip(factored, results, strict=True):
            reduced[index] = result
        return save_state

    def _control(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None,
        loss_scale: tf.Tensor | None,
    ) -> Control:
        """Record this reduction, and return the message of this rank to the others with it."""

        def repeat(zeros: Sequence[Any]) -> tf.Tensor:
            self(zeros, variables, None if loss_scale is None else tf.ones([]))
            return share.take_answer()[1]

        travel = [
            gradient
            if not isinstance(gradient, tf.IndexedSlices) or self._stays_sparse(gradient)
            else tf.TensorSpec(gradient.shape, gradient.dtype)
            for gradient in gradients
        ]
        begins_step = share.record(repeat, travel, variables)
        return self.control(share.rows(), variables or gradients, begins_step)

    def control(self, rows: Any, like: Sequence[Any], begins_step: bool) -> Control:
        """Return the message of this rank to the others: its rows, and a key of its reduction."""
        key = NO_SHARES
        if self.op is Average:
            # Shapes, since Keras numbers names by what a rank has made before.
            shapes = [self.label, *(str(tensor.shape) for tensor in like if tensor is not None)]
            key = 1 + zlib.crc32(",".join(shapes).encode()) % (2**31 - 2)
        return Control(rows, share.idle() is not None, begins_step, key)

    def _reduce_dense(
        self, reduced: list[Any], tensors: list[Any], control: Control
    ) -> tf.Tensor | None:
        """Reduce in buckets; return the weight of this rank, or None for sums."""
        answer = None
        plan = self.groups(tensors)
        # Without a dense gradient, the control vector travels alone.
        for number, bucket in enumerate(plan or [buckets.Bucket((), "float32", 0)]):
            results, reply = shares.allreduce(
                [tensors[index] for index in bucket.indices],
                control if number == 0 else replace(control, begins_step=False),
                name=f"{self.label}/bucket_{number}:{bucket.label}",
                process_set=self.process_set,
                **self._options(),
            )
            answer = reply if answer is None else answer
            for index, result in zip(bucket.indices, results, strict=True):
                reduced[index] = result
        share.leave_answer(answer)
        return answer[0] if answer is not None and self.op is Average else None

    def _reduce_maxima(self, reduced: list[Any], tensors: list[Any]) -> None:
        for number, bucket in enumerate(self.groups(tensors)):
            results = grouped_allreduce(
                [tensors[index] for index in bucket.indices],
                op=Max,
                name=f"overwrites/bucket_{number}:{bucket.label}",
                process_set=self.process_set,
                algorithm=self.algorithm,
            )
            for index, result in zip(bucket.indices, results, strict=True):
                reduced[index] = result

    def plan(self, tensors: Sequence[Any]) -> list[buckets.Bucket]:
        """Return the buckets of `tensors`, by the limits of the user or of the step's settings."""
        return buckets.plan(tensors, *tuned.current().limits(self.bucket_bytes))

    def groups(self, tensors: Sequence[Any]) -> list[buckets.Bucket]:
        """Return the buckets of `tensors` that ranks keep whole.

        In a step that XLA compiles for a GPU, the host waits for each collective before it launches
        what follows, so that buckets would hide nothing: by default all tensors of a dtype are one.
        Where ranks keep slices, buckets free memory.
        """
        limits = tuned.current().limits(self.bucket_bytes)
        if limits == (None, None) and compiled.is_for_gpu():
            limits = sys.maxsize, sys.maxsize
        return buckets.plan(tensors, *limits)

    @property
    def of_dense(self) -> Any:
        """The compression of gradients that are not sent as factors."""
        if self.low_rank is not None:
            return Compression.none
        if self.label != "gradients":
            return self.compression
        return tuned.current().compression_over(self.compression)

    def _options(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm or tuned.current().algorithm, **self._factors()}

    def _factors(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "compression": self.of_dense,
            "prescale_factor": self.prescale_factor,
            "postscale_factor": self.postscale_factor,
        }

    def merged(self, gradient: Any) -> Any:
        """Return a gradient with the slices of equal rows added, or dense."""
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        return tf.convert_to_tensor(gradient) if self.sparse_as_dense else sparse.merged(gradient)


def _weighted(gradient: Any, weight: tf.Tensor | None) -> Any:
    """Return the gradient, a tensor or `tf.IndexedSlices`, times the weight of this rank."""
    if weight is None or not gradient.dtype.is_floating:
        return gradient
    if not isinstance(gradient, tf.IndexedSlices):
        return shares.weighted(gradient, weight)
    values = _weighted(gradient.values, weight)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def is_overwritten(variable: Any) -> bool:
    """Return whether Keras writes gradients over a variable."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def tensor_like(variable: Any | None, gradient: Any) -> tf.Tensor:
    """Return a gradient as a tensor of its variable's static shape, which XLA may have lost."""
    tensor = gradient if isinstance(gradient, tf.Tensor) else tf.convert_to_tensor(gradient)
    if variable is None or tensor.shape.is_fully_defined():
        return tensor
    return tf.ensure_shape(tensor, variable.shape)


def all_finite(reduced: Sequence[Any]) -> tf.Tensor:
    """Return whether no reduced gradient overflowed; the result is the same on all ranks."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in reduced if g is not None]
    floats = [value for value in values if value.dtype.is_floating]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in floats])


def spread_overflow(
    reduced: list[Any], indices: Iterable[int], process_set: ProcessSet | None
) -> None:
    """Make all ranks skip the step if a gradient at `indices` overflowed on one of them."""
    present = [i for i in indices if reduced[i] is not None]
    if not present:
        return
    gradients = [tf.convert_to_tensor(reduced[i]) for i in present]
    has_overflow = allreduce(
        tf.cast(tf.logical_not(all_finite(gradients)), tf.float32),
        Max,
        name="gradients/overflow",
        process_set=process_set,
    )
    poison = tf.where(has_overflow > 0, float("nan"), 0.0)
    reduced[present[0]] = gradients[0] + tf.cast(poison, gradients[0].dtype)
