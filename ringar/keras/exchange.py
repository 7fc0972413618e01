"""The exchange of ranks around the steps of an optimizer: how, of what, and when.

A distributed optimizer has one `Exchange`, a combination of three parts:

- a `Reducer`: how gradients travel;
- `Slices`: what this rank trains;
- a `Period`: when an exchange is due.

The parts of this module exchange nothing: gradients stay on their rank, which trains whole
variables. `apply` (`ringar.keras.apply`) asks the parts in this order. Callbacks and losses ask
them what holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from ringar.collectives import Average, shares
from ringar.job import membership
from ringar.job.process_sets import or_all
from ringar.keras import sparse
from ringar.sharding.slots import inner_optimizer

if TYPE_CHECKING:
    import keras

    from ringar.collectives.ops import ReduceOp
    from ringar.job.process_sets import ProcessSet
    from ringar.keras.zero.offload import Offload
    from ringar.sharding.grid import Grid


Variables: TypeAlias = Sequence[Any] | None
"""The variables of gradients; None if they are not known."""


class Reducer:
    """Say how gradients travel; here: not at all.

    Args:
        process_set: the ranks that train together; None: all.

    Attributes:
        op: how gradients are combined: `ringar.Average` or `ringar.Sum`.
        grid: the grid on which the model is split, if it is.
    """

    op: ReduceOp
    process_set: ProcessSet | None
    grid: Grid | None = None

    def __init__(self, process_set: ProcessSet | None = None) -> None:
        self.op, self.process_set = Average, process_set

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank, and no other will come: a traced step may rely on it."""
        return or_all(self.process_set).size() == 1 and not membership.is_elastic()

    def __call__(
        self, gradients: Sequence[Any], variables: Variables = None, loss_scale: Any = None
    ) -> list[Any]:
        """Return the gradients that the optimizer gets.

        Args:
            gradients: tensors, `tf.IndexedSlices` or None.
            variables: the variables of the gradients, if they are known.
            loss_scale: the factor in the gradients, if it changes from step to step.
        """
        return list(gradients)

    def clip(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None,
    ) -> list[Any]:
        """Clip gradients that the optimizer cannot clip by itself, and return all."""
        return list(gradients)

    def is_local(self, variable: Any) -> bool:
        """Return whether each rank has a value of its own of a variable."""
        return False

    def note_holder(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Note the optimizer whose `apply` takes the step that begins."""

    def behind_start(self) -> AbstractContextManager[Any]:
        """Return a context for the ops of a step: they run after its start."""
        return nullcontext()


class LocalGradients(Reducer):
    """Leave gradients on their rank; add up slices of equal rows, as the optimizer needs it."""

    def __call__(
        self, gradients: Sequence[Any], variables: Variables = None, loss_scale: Any = None
    ) -> list[Any]:
        """Return the gradients of this rank, with one slice per row."""
        return [sparse.merged(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


class Slices:
    """Say what this rank trains; here: the variables of the model.

    Attributes:
        offload: makes the optimizer's slots; None: Keras makes them, beside the variables.
    """

    offload: Offload | None = None

    def prepare(
        self, optimizer: keras.optimizers.Optimizer, model: keras.Model, inputs: Any
    ) -> None:
        """Act before the training step of a model is traced, or runs in eager code.

        Args:
            optimizer: the one around whose steps ranks exchange.
            model: the model.
            inputs: the inputs of the model in the batch.
        """

    def parts(self, variables: Sequence[Any]) -> list[Any]:
        """Return the parts that the optimizer trains on this rank in the place of the variables."""
        return list(variables)

    def clip(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[Any],
        clip: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """Clip where the optimizer does, after the accumulation of gradients.

        Args:
            optimizer: the one that trains.
            gradients: those of the parts that it trains.
            clip: Keras' own function.
        """
        return clip(gradients)

    def publish(self) -> None:
        """Give the model the values that the optimizer has assigned to parts of its variables."""

    def constrain(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Constrain variables of which the optimizer trains parts, at the end of its step.

        Args:
            gradients: those that the optimizer got.
            variables: the model's variables.
        """


class Period:
    """Say when an exchange is due; here: in each step, with its gradients.

    Attributes:
        in_every_step: whether ranks combine their gradients in every step. If not, their weights
            differ in between, until all ranks have come to `settle`.
        meets: whether ranks meet in collectives while they train. If not, each goes through its
            epochs alone, with metrics of its own, and the others go on without a rank that is lost.
        state: the variables that have been made; a run that is resumed goes on with them.
    """

    in_every_step: bool = True
    meets: bool = True
    state: Sequence[Any] = ()

    @property
    def counters(self) -> Sequence[Any]:
        """The variables that count steps, where all else is equal on ranks that settle.

        The first one counts the steps of this rank.
        """
        return ()

    def build(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any] | None) -> None:
        """Make the state for the variables of an optimizer, unless it is there.

        Args:
            optimizer: the one around whose steps ranks exchange.
            variables: those that it trains; None if they are not known.
        """

    def begin_step(
        self, gradients: Sequence[Any], variables: Variables, loss_scale: Any
    ) -> tf.Tensor | None:
        """Act before a step.

        Args:
            gradients: those that the optimizer gets.
            variables: their variables, if they are known.
            loss_scale: the factor in the gradients, if it changes from step to step.

        Returns:
            Whether the optimizer takes this step, or only counts it; None: it takes every step.
        """
        return None

    def end_step(self) -> None:
        """Act after a step, whether the optimizer has taken or skipped it."""

    def begin_epoch(self) -> None:
        """Begin an epoch of `fit`. All ranks have come here, with the same weights."""

    def flush(self) -> None:
        """Take the exchange that is due at the end of this rank's data, if one is."""

    def settle(self) -> None:
        """Leave the model the weights that all ranks have in common. All ranks have come here."""


@dataclass(eq=False)
class Exchange:
    """Combine how ranks exchange, what they train and when.

    Attributes:
        reduction: how gradients travel.
        slices: what this rank trains.
        period: when an exchange is due.
        description: the settings that must be the same on all ranks, after the `function` that was
            called.
        chosen: the settings (`ringar.keras.tuned`) that the user has chosen.
        twin: returns an exchange with these settings, and without the state of this one.
    """

    reduction: Reducer = field(default_factory=Reducer)
    slices: Slices = field(default_factory=Slices)
    period: Period = field(default_factory=Period)
    description: Mapping[str, object] = field(default_factory=dict)
    chosen: Mapping[str, object] = field(default_factory=dict)
    twin: Callable[[], Exchange] = field(default_factory=lambda: Exchange)

    @property
    def ranks(self) -> ProcessSet | None:
        """The ranks that hold different examples."""
        grid = self.reduction.grid
        return self.reduction.process_set if grid is None else grid.data_set

    @property
    def steps(self) -> int:
        """The number of steps that this rank has taken part in, idle or not."""
        if self.period.in_every_step:
            return shares.steps()
        counters = self.period.counters
        return int(counters[0]) if counters else 0

    def build(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any] | None) -> None:
        """Make the state for the variables of an optimizer, as `Period.build` does.

        Where slots are offloaded, check that all ranks have room for them.
        """
        offload = self.slices.offload
        if offload is not None:
            if variables is not None and not optimizer.built:
                optimizer.build(variables)
            offload.meet(self.reduction.process_set)
        self.period.build(optimizer, variables)


def exchange_of(optimizer: keras.optimizers.Optimizer) -> Exchange | None:
    """Return the exchange of a distributed optimizer, or of the one in a `LossScaleOptimizer`."""
    # A `LossScaleOptimizer` may be distributed itself.
    holders = (optimizer, inner_optimizer(optimizer))
    return next((o._exchange for o in holders if hasattr(o, "_exchange")), None)
