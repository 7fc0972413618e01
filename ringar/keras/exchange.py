"""What ranks exchange about a training step: before the optimizer's step, and after it.

A distributed optimizer has one `Exchange`. Reductions of gradients act before each step, and so
weights stay equal on all ranks. Others let ranks take steps of their own, and act after some of
them. Callbacks and losses ask the exchange for what holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ringar.collectives import shares

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from ringar.collectives.ops import ReduceOp
    from ringar.job.process_sets import ProcessSet

Its = TypeVar("Its", bound="Exchange")


class Exchange:
    """Define what happens between ranks around `optimizer.apply`; the defaults: nothing.

    Attributes:
        op: how gradients are combined: `ringar.Average` or `ringar.Sum`.
        process_set: the ranks that train together; None: all.
        in_every_step: whether ranks combine their gradients in every step. If not, their weights
            differ in between, until all ranks have come to `settle`.
        meets: whether ranks meet in collectives while they train. If not, each goes through its
            epochs alone, with metrics of its own, and the others go on without a rank that is lost.
    """

    op: ReduceOp
    process_set: ProcessSet | None
    in_every_step: ClassVar[bool] = True
    meets: ClassVar[bool] = True

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank, and no other will come: a traced step may rely on it."""
        raise NotImplementedError

    @property
    def description(self) -> dict[str, object]:
        """The settings that must be the same on all ranks, after the `function` that was called."""
        return {}

    @property
    def chosen(self) -> dict[str, object]:
        """The settings (`ringar.keras.tuned`) that the user has chosen."""
        return {}

    @property
    def ranks(self) -> ProcessSet | None:
        """The ranks that hold different examples."""
        return self.process_set

    def renewed(self: Its) -> Its:
        """Return an exchange with these settings, and without the state of this one."""
        raise NotImplementedError

    def build(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any] | None) -> None:
        """Make the state for the variables of an optimizer, unless it is there.

        Args:
            optimizer: the one around whose steps ranks exchange.
            variables: those that it trains; None if they are not known.
        """

    def is_local(self, variable: Any) -> bool:
        """Return whether each rank has a value of its own of a variable."""
        return False

    def prepare(
        self, optimizer: keras.optimizers.Optimizer, model: keras.Model, inputs: Any
    ) -> None:
        """Act before the training step of a model is traced, or runs in eager code.

        Args:
            optimizer: the one around whose steps ranks exchange.
            model: the model.
            inputs: what the model gets of the batch.
        """

    def variables(self) -> list[Any]:
        """Return the state that has been made; a run that is resumed goes on with it."""
        return []

    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None = None,
        loss_scale: tf.Tensor | None = None,
    ) -> list[Any]:
        """Act before a step, and return the gradients that the optimizer gets.

        Args:
            gradients: tensors, `tf.IndexedSlices` or None.
            variables: the variables of the gradients, if they are known.
            loss_scale: the factor in the gradients, if it changes from step to step.
        """
        raise NotImplementedError

    def clip(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None,
    ) -> list[Any]:
        """Clip what the optimizer cannot clip by itself, and return the gradients."""
        return list(gradients)

    def is_due(self) -> tf.Tensor | None:
        """Return whether the optimizer takes this step, or counts it only; None: it takes all."""
        return None

    def parts(self, variables: Sequence[Any]) -> list[Any]:
        """Return what the optimizer trains on this rank in the place of the model's variables."""
        return list(variables)

    def slot(self, part: Any, name: str, initializer: Any) -> Any | None:
        """Make a slot of the optimizer elsewhere than Keras would; None: Keras makes it.

        Args:
            part: the variable that it belongs to, or what is trained in its place.
            name: its name.
            initializer: an initializer of Keras, or its name.
        """
        return None

    def applied_by(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Take the optimizer whose `apply` takes the step that begins."""

    def begun(self) -> AbstractContextManager[Any]:
        """Return a context for ops that are those of a step: they run behind its beginning."""
        return nullcontext()

    def clipped(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[Any],
        clip: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """Clip where the optimizer does, behind the accumulation of gradients.

        Args:
            optimizer: the one that trains.
            gradients: those of the parts that it trains.
            clip: Keras' own function.
        """
        return clip(gradients)

    def publish(self) -> None:
        """Give the model what the optimizer has assigned to its parts of variables."""

    def applied(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Act at the end of a step that was taken.

        Args:
            gradients: those that the optimizer got.
            variables: the model's variables.
        """

    def after(self) -> None:
        """Act after a step, whether the optimizer has taken or skipped it."""

    def begin(self) -> None:
        """Begin an epoch of `fit`. All ranks have come here, with the same weights."""

    def flush(self) -> None:
        """Take the exchange that is due at the end of this rank's data, if one is."""

    def settle(self) -> None:
        """Leave the model the weights that all ranks have in common. All ranks have come here."""

    def steps(self) -> int:
        """Return the number of steps that this rank has taken part in, idle or not."""
        return shares.steps()

    def counters(self) -> list[Any]:
        """Return the variables that count steps, where all else is equal on ranks that settle."""
        return []
