"""Callbacks that run `fit` themselves, and callbacks that the ranks call together."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from ringar.job.process_sets import ProcessSet
from ringar.keras import keras_2

if TYPE_CHECKING:
    from ringar.keras.backup import Backup

INITIAL_EPOCH = "_ringar_initial_epoch"
"""The attribute of a model that has the `initial_epoch` of its last `fit`."""


class Coordinated(keras_2.Callback):
    """A callback whose hooks run on all ranks at the same place, so that they may communicate."""

    def fit(
        self,
        model: keras.Model,
        call: inspect.BoundArguments,
        original: Callable[..., keras.callbacks.History],
    ) -> keras.callbacks.History:
        """Call `fit`, and return its result.

        Args:
            model: the model.
            call: the arguments of `fit`, of which `self` is the first.
            original: Keras' function.
        """
        return original(*call.args, **call.kwargs)

    def begin_training(
        self, callbacks: list[keras.callbacks.Callback], process_set: ProcessSet | None, steps: int
    ) -> None:
        """Take the callbacks of the list, after all of them have begun.

        Args:
            callbacks: all callbacks of the list.
            process_set: the ranks that train together.
            steps: the steps of an epoch that all ranks have; 0 if they are not known.
        """

    def resumes(self, backup: Backup) -> bool:
        """Return whether this callback decides where training goes on. Collective.

        Args:
            backup: the `Backup` of the list, which has not been read yet.
        """
        return False

    def after_epoch_begin(self, epoch: int) -> None:
        """Act after the other callbacks."""

    def before_batch(self, batch: int) -> None:
        """Act before the other callbacks, if all ranks have this batch."""

    def after_epoch_end(self, epoch: int) -> None:
        """Act after the other callbacks."""


def handing_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let `fit` hand itself to the first `Coordinated` among its callbacks.

    A script makes its callbacks in the call of `fit`, too late to replace it. So the distributed
    optimizer installs this.
    """
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(self, *args, **kwargs)
        # Keras' parameters for callbacks lack it. Keras' own __setattr__ would track it.
        object.__setattr__(self, INITIAL_EPOCH, call.arguments.get("initial_epoch", 0))
        callbacks = call.arguments.get("callbacks")
        if isinstance(callbacks, list | tuple):
            coordinated = next((c for c in callbacks if isinstance(c, Coordinated)), None)
            if coordinated is not None:
                return coordinated.fit(self, call, original)
        return original(self, *args, **kwargs)

    return fit
