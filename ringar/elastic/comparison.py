"""The comparison of ranks in each new world: of learning rates, and of weights that are reduced.

A job that is not elastic compares while it traces its first step. Here ranks that have stayed do
not trace again when others join. So ranks compare when the state is shared, before the first step
of a world, and with the first commit after it: a difference outside the state, such as a rate in a
variable of Python, shows in the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringar.collectives import allgather_object
from ringar.collectives.agree import compare
from ringar.job import place

if TYPE_CHECKING:
    import keras

_CALLER = "elastic job"
_REMEDY = (
    "Ranks that join run the script from its beginning; ranks that stay run their reset callbacks. "
    "Let the state hold the model and the optimizer that train. Set what depends on the number of "
    "ranks, such as the learning rate, after ringar.init and in state.register_reset_callbacks, "
    "or within the training function."
)


@dataclass(frozen=True)
class Compared:
    """Hold the traits that ranks must have in common.

    Attributes:
        settings: the optimizers' settings, with their learning rates.
        names: the names of the weights that are trained.
        digests: the digests of these weights.
        reduced: whether this rank has reduced the gradients of each.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    names: Sequence[str] = ()
    digests: Sequence[int] = ()
    reduced: Sequence[bool] = ()

    @classmethod
    def of(
        cls, variables: Sequence[Any], optimizers: Sequence[keras.optimizers.Optimizer] = ()
    ) -> Compared:
        """Return the settings of optimizers, and digests of the variables that are trained."""
        from ringar.keras import description, first_step
        from ringar.keras.state import State

        trained = [variable for variable in variables if variable.trainable]
        settings = {
            f"optimizer {number}": description.optimizer(optimizer, rate=True)
            for number, optimizer in enumerate(optimizers)
        }
        return cls(
            settings,
            [getattr(variable, "path", variable.name) for variable in trained],
            State.of(trained).digests(),
            [first_step.is_reduced(variable) for variable in trained],
        )


def require_same(traits: Compared) -> None:
    """Raise on all ranks if they train with other settings or weights. Collective.

    Weights whose gradients no rank has reduced may differ. If all weights are such, so may
    settings.

    Args:
        traits: those of this rank; none on any rank, or some on all.

    Raises:
        MismatchError: with the first setting or weight that differs, and its values.
    """
    if place.size() == 1 or not traits.names:
        return
    everyone: list[Compared] = allgather_object(traits, name="elastic/comparison")
    reduced = {number for rank in everyone for number, is_so in enumerate(rank.reduced) if is_so}
    if reduced:
        described = [_described(rank, reduced, everyone[0].names) for rank in everyone]
        compare(described, caller=_CALLER, remedy=_REMEDY)


def _described(traits: Compared, reduced: set[int], names: Sequence[str]) -> dict[str, Any]:
    weights = {
        f"{names[number]} (digest of weight {number})": digest
        for number, digest in enumerate(traits.digests)
        if number in reduced and number < len(names)
    }
    return {**traits.settings, "number of weights": len(traits.digests), **weights}
