"""How Horovod's optimizers and tapes reduce gradients, as an exchange of ringar."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from ringar.collectives import ops
from ringar.collectives.agree import same
from ringar.horovod.common.environment import bucket_bytes
from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.common.reduce_op import ReduceOp
from ringar.horovod.common.util import split_list
from ringar.horovod.tensorflow import handles, joining
from ringar.horovod.tensorflow.adasum import adasum
from ringar.horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from ringar.horovod.tensorflow.local_variables import LocalVariables
from ringar.job import membership
from ringar.job.process_sets import ProcessSet
from ringar.keras.exchange import Exchange, Period, Reducer, Variables
from ringar.keras.reduction import Reduction

Groups = int | Sequence[Sequence[Any]] | None


@dataclass(frozen=True)
class Settings:
    """Hold the arguments that Horovod's optimizers and tapes have in common.

    Attributes:
        op: Average or Sum; a tape also takes Adasum.
        compression: the compressor.
        sparse_as_dense: reduce `tf.IndexedSlices` as dense gradients.
        gradient_predivide_factor: of an average, divide by it before the sum, multiply after it.
        groups: the number of groups of gradients that are reduced together, or their variables.
        process_set: the ranks that reduce.
        scale_local_gradients: divide gradients of local variables by the number of ranks.
        backward_passes_per_step: how many passes add up their gradients before a reduction.
        average_aggregated_gradients: divide by that number.
    """

    op: ReduceOp
    compression: Any
    sparse_as_dense: bool
    gradient_predivide_factor: float
    groups: Groups
    process_set: ProcessSet
    scale_local_gradients: bool
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0 and self.op is not ReduceOp.Average:
            raise ValueError(
                "`gradient_predivide_factor` must be 1 but for op=Average. "
                f"Received: {self.gradient_predivide_factor} with op={self.op.name}"
            )
        groups = self.groups
        is_number = isinstance(groups, int) and groups > 0
        if not (groups is None or is_number or isinstance(groups, list)):
            raise ValueError(
                "`groups` must be a positive number, or a list of lists of variables. "
                f"Received: {groups!r}"
            )

    def arguments(self) -> dict[str, object]:
        """Return the arguments that ranks must have alike, by name."""
        groups = self.groups
        return {
            "op": self.op.name,
            "compression": getattr(self.compression, "__name__", type(self.compression).__name__),
            "gradient_predivide_factor": self.gradient_predivide_factor,
            "sparse_as_dense": self.sparse_as_dense,
            "groups": groups if isinstance(groups, int | None) else [len(g) for g in groups],
            "backward_passes_per_step": self.backward_passes_per_step,
            "average_aggregated_gradients": self.average_aggregated_gradients,
        }


def groups_of(num_groups: int, groups: Groups) -> Groups:
    """Return the groups that the arguments `groups` and `num_groups`, the older one, ask for."""
    if num_groups:
        warnings.warn("`num_groups` is deprecated: pass `groups`", DeprecationWarning, stacklevel=3)
        return num_groups if groups is None else groups
    return groups


class GradientReduction(Reducer):
    """Reduce the gradients of a step as Horovod does.

    Args:
        settings: the arguments of the user.
        in_tape: whether it is that of a tape, which lives for one step.
    """

    def __init__(self, settings: Settings, in_tape: bool = False) -> None:
        self._settings, self._in_tape = settings, in_tape
        adds = settings.op is ReduceOp.Sum
        self.op = ops.Sum if adds else ops.Average
        self.process_set = (
            None if settings.process_set is global_process_set else settings.process_set
        )
        self._reduction = Reduction(
            self.op,
            settings.compression,
            None,
            self.process_set,
            bucket_bytes(os.environ),
            1.0 if adds else 1.0 / settings.gradient_predivide_factor,
            1.0 if adds else settings.gradient_predivide_factor,
            settings.sparse_as_dense,
        )
        self._of_groups: dict[int, Reduction] = {}
        self._is_compared = False
        self._helper: LocalGradientAggregationHelper | None = None
        if settings.backward_passes_per_step != 1:
            self._helper = LocalGradientAggregationHelper(
                settings.backward_passes_per_step,
                self._reduce_shared,
                settings.sparse_as_dense,
                settings.average_aggregated_gradients,
                rank=0,
                optimizer_type=None,
                process_set=settings.process_set,
                scale_local_gradients=settings.scale_local_gradients,
            )
        self._local = LocalVariables(settings.process_set, settings.scale_local_gradients)

    def exchange(self) -> Exchange:
        """Return the exchange of ranks that reduce their gradients in this way."""
        return Exchange(
            self,
            period=Passes(self._helper, self._settings.process_set.included()),
            description={"function": "DistributedOptimizer", **self._settings.arguments()},
            twin=lambda: GradientReduction(self._settings).exchange(),
        )

    def register_local_var(self, var: Any) -> None:
        """Keep the gradients of a variable on this rank."""
        self._local.register(var)
        if self._helper is not None:
            self._helper.register_local_var(var)

    def is_local(self, variable: Any) -> bool:
        """Return whether the gradients of a variable stay on this rank, and so does its value."""
        return self._local.has(variable)

    def __call__(
        self, gradients: Sequence[Any], variables: Variables = None, loss_scale: Any = None
    ) -> list[Any]:
        """Reduce the gradients, or add them to those of the passes before.

        Args:
            gradients: tensors, `tf.IndexedSlices` or None.
            variables: their variables; local ones and groups need them.
            loss_scale: the factor in the gradients, if it changes from step to step.
        """
        handles.wait_for_all()
        self._compare_settings()
        keys = list(gradients) if variables is None else list(variables)
        if self._helper is None:
            return self._local.reduce(gradients, keys, self._reduce_shared)
        # The factor may change from pass to pass.
        scale = 1.0 if loss_scale is None else loss_scale
        unscaled = [None if g is None else _divided(g, scale) for g in gradients]
        sums = self._helper.compute_gradients(unscaled, keys)
        if loss_scale is None:
            return sums
        is_due = self._helper.is_due()
        # A rank must not find an overflow in its sums before the others do.
        return [
            None if g is None else tf.where(is_due, g * tf.cast(scale, g.dtype), tf.zeros_like(g))
            for g in sums
        ]

    def _compare_settings(self) -> None:
        """Raise an error on all ranks, once, if one of them was given other arguments.

        Ranks with other numbers of passes would reduce gradients of different batches.
        """
        if self._is_compared or self._in_tape or membership.is_elastic():
            return
        with tf.init_scope():
            ranks = self._settings.process_set
            if not tf.executing_eagerly() or not ranks.included() or ranks.size() == 1:
                return
            same(
                self._settings.arguments(),
                caller="DistributedOptimizer",
                remedy="Pass the same arguments on all ranks.",
                process_set=self.process_set,
            )
        self._is_compared = True

    def _reduce_shared(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduce the gradients of variables that are not local."""
        if not self._settings.process_set.included():
            return [self._reduction.merged(gradient) for gradient in gradients]
        if self._settings.op is ReduceOp.Adasum:
            return self._by_adasum(gradients)
        parts = self._parts(gradients, variables)
        if parts is None:
            return self._reduction(gradients, _if_variables(variables))
        results: list[Any] = [None] * len(gradients)
        for number, part in enumerate(parts):
            reduced = self._of_group(number)(
                [gradients[i] for i in part], _if_variables([variables[i] for i in part])
            )
            for index, gradient in zip(part, reduced, strict=True):
                results[index] = gradient
        return results

    def _of_group(self, number: int) -> Reduction:
        if number not in self._of_groups:
            self._of_groups[number] = replace(self._reduction, label=f"gradients/group_{number}")
        return self._of_groups[number]

    def _parts(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Sequence[int]] | None:
        """Return the indices of each group's gradients; None: ringar's buckets will do."""
        groups = self._settings.groups
        if groups is None:
            return None
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if isinstance(groups, int):
            return [part for part in split_list(present, groups) if part]
        index_of = {id(variable): i for i, variable in enumerate(variables)}
        named = [[i for v in group if (i := index_of.get(id(v))) in present] for group in groups]
        rest = set(present) - {i for part in named for i in part}
        return [part for part in [*named, *([i] for i in sorted(rest))] if part]

    def _by_adasum(self, gradients: Sequence[Any]) -> list[Any]:
        sparse = any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        if sparse and not self._settings.sparse_as_dense:
            raise NotImplementedError(
                "Adasum expected dense gradients, received tf.IndexedSlices; pass "
                "sparse_as_dense=True"
            )
        compression = self._settings.compression
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        pairs = [compression.compress(tf.convert_to_tensor(gradients[i])) for i in places]
        combined = adasum([value for value, _ in pairs], "gradients", self.process_set)
        results: list[Any] = [None] * len(gradients)
        for index, value, (_, context) in zip(places, combined, pairs, strict=True):
            results[index] = compression.decompress(value, context)
        return results


class Passes(Period):
    """Let the optimizer take a step after a number of passes.

    Args:
        helper: adds up the gradients of the passes; None: each pass is a step.
        meets: whether this rank is in the process set; elsewhere gradients stay as they are.
    """

    def __init__(self, helper: LocalGradientAggregationHelper | None, meets: bool) -> None:
        self._helper, self.meets = helper, meets

    def build(self, optimizer: Any, variables: Sequence[Any] | None) -> None:
        """Build the optimizer, which a branch of a step could not do."""
        joining.note(optimizer)
        if self._helper is None or variables is None:
            return
        if not optimizer.built:
            with tf.init_scope():
                optimizer.build(list(variables))
        self._helper.build(variables)
        self.state = self._helper.variables()

    def begin_step(
        self, gradients: Sequence[Any], variables: Variables, loss_scale: Any
    ) -> tf.Tensor | None:
        """Return whether this pass was the last of a step."""
        return None if self._helper is None else self._helper.is_due()


def _divided(gradient: Any, scale: Any) -> Any:
    if isinstance(scale, float):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = _divided(gradient.values, scale)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(scale, gradient.dtype)


def _if_variables(variables: Sequence[Any]) -> Sequence[Any] | None:
    """Return the variables, or None if they are unknown, and gradients stand for them."""
    return variables if all(hasattr(v, "assign") for v in variables) else None
