"""A rank's slices of variables, which it trains with `shard`.

The optimizer trains slices in the place of variables (`ringar.sharding.variable_slice`). `publish`
then gathers them into the variables of the model. Norms of gradients, for clipping, are sums over
the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ringar.collectives import Sum, allreduce, branches, grouped_allgather
from ringar.collectives.compiled import is_compiling
from ringar.keras.exchange import Slices
from ringar.keras.reduction import Reduction, is_overwritten
from ringar.sharding.slice_ranks import Slicing
from ringar.sharding.variable_slice import VariableSlice

if TYPE_CHECKING:
    from ringar.keras.zero.offload import Offload
    from ringar.sharding.slice_ranks import SliceRanks


class VariableSlices(Slices):
    """Let the optimizer train slices, and all-gather the weights.

    Args:
        reduction: how gradients are reduced.
        slicing: the ranks among which each variable is cut.
        offload: makes the slots; None: Keras makes them, beside the variables.
    """

    def __init__(
        self, reduction: Reduction, slicing: Slicing, offload: Offload | None = None
    ) -> None:
        self.slicing, self.offload = slicing, offload
        self._reduction = reduction
        self._slices: dict[Any, VariableSlice] = {}

    def __iter__(self) -> Iterator[VariableSlice]:
        """Iterate over this rank's slices, in the order of the variables."""
        return iter(list(self._slices.values()))

    def parts(self, variables: Sequence[Any]) -> list[Any]:
        """Return the slices of `variables`; those that gradients overwrite stay whole."""
        return list(variables) if self._reduction.is_alone else [self._part(v) for v in variables]

    def _part(self, variable: Any) -> Any:
        if isinstance(variable, VariableSlice) or is_overwritten(variable):
            return variable
        tensor = variable.value if isinstance(variable, keras.Variable) else variable
        if tensor._unique_id not in self._slices:
            part = VariableSlice(variable, self.slicing.of(variable))
            self._slices[tensor._unique_id] = part
        return self._slices[tensor._unique_id]

    def clip(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[Any],
        clip: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """Clip by the norms of whole gradients, with the formulas of Keras."""
        limit, global_limit = optimizer.clipnorm, optimizer.global_clipnorm
        if self._reduction.is_alone or not (limit or global_limit):
            return clip(gradients)
        dtype = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
        squares = allreduce(
            tf.stack([tf.reduce_sum(tf.square(tf.cast(g, dtype))) for g in gradients]),
            Sum,
            name="gradients/norms",
            process_set=self.slicing.once,
        )
        if limit:
            divisors = tf.unstack(tf.maximum(tf.sqrt(squares), limit))
            return [
                g * tf.cast(limit, g.dtype) / tf.cast(divisor, g.dtype)
                for g, divisor in zip(gradients, divisors, strict=True)
            ]
        norm = tf.sqrt(tf.reduce_sum(squares))
        scale = global_limit * tf.minimum(1.0 / norm, 1.0 / global_limit) + (norm - norm)
        return [g * tf.cast(scale, g.dtype) for g in gradients]

    def publish(self) -> None:
        """Gather the slices that were assigned into the model's variables, first layer first."""
        slices = list(self)
        for ranks in self.slicing.kinds:
            weights = [
                s.variable if s.pending is not None and s.ranks is ranks else None for s in slices
            ]
            plan = self._reduction.plan(weights)
            for number, bucket in enumerate(reversed(plan)):
                name = f"weights/slices_{number}:{bucket.label}"
                _gather([slices[i] for i in bucket.indices], ranks, name)

    def constrain(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Constrain the whole variables, as Keras does after a step."""
        if self._reduction.is_alone:
            return
        for gradient, variable in zip(gradients, variables or (), strict=False):
            constraint = getattr(variable, "constraint", None)
            if gradient is not None and constraint is not None and not is_overwritten(variable):
                variable.assign(constraint(variable))


def _gather(slices: Sequence[VariableSlice], ranks: SliceRanks, name: str) -> None:
    """Gather the values that the ranks have assigned to slices into their variables."""
    # Compiled code knows the shapes before, and needs equal numbers of rows.
    padded = is_compiling()
    gathered = grouped_allgather(
        [s.read() if padded else s.read()[: s.count] for s in slices],
        name=name,
        process_set=ranks.among,
    )
    for part, flat in zip(slices, gathered, strict=True):
        flat = part.joined(flat) if padded else flat
        part.variable.assign(tf.reshape(flat, part.variable.shape))
        part.pending = None
    branches.note(gathered)
