"""Horovod's callbacks for learning rates.

Momentum correction: the velocity of SGD with momentum contains former learning rates. When the
learning rate changes from `old` to `new`, the velocity is multiplied once by `new / old`. Horovod
multiplies the momentum for one step instead, which has the same effect; in Keras 3 the momentum is
a constant of the compiled step.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from ringar.job import place
from ringar.job.process_sets import or_all
from ringar.keras import keras_2
from ringar.keras.exchange import exchange_of
from ringar.sharding.slots import inner_optimizer


class LearningRateScheduleCallback(keras_2.Callback):
    """Set the learning rate to `initial_lr * multiplier` between two epochs.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a number, or a function of the epoch that returns one.
        start_epoch: the first epoch in which it applies.
        end_epoch: the first epoch in which it no longer applies; None for no end.
        staircase: set the learning rate once per epoch; else before each batch, and `multiplier`
            then gets the epoch as a fraction: `epoch + batch / steps_per_epoch`.
        momentum_correction: scale the velocity of an optimizer with momentum by the same factor as
            the learning rate.
        steps_per_epoch: required without `staircase` if Keras does not know it.

    Raises:
        ValueError: when training begins, if the number of steps is needed and not known, or the
            optimizer follows a schedule of its own.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError(
                "`initial_lr` must be a number, the learning rate to begin with. Received: None"
            )
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._rate = 0.0  # the rate that this callback last saw or set

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Find out the number of steps per epoch."""
        schedule = getattr(inner_optimizer(self.model.optimizer), "_learning_rate", None)
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                f"{type(self).__name__} needs an optimizer whose learning rate is a number. "
                f"Received: learning_rate={schedule}"
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "`steps_per_epoch` must be given where Keras does not know the number of steps "
                    f"of an epoch. Received: {type(self).__name__}(steps_per_epoch=None)"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Set the learning rate of this epoch, with `staircase`."""
        self.current_epoch = epoch
        self._rate = self._current()
        if self.staircase and self._applies():
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Set the learning rate of this batch, without `staircase`."""
        if not self.staircase and self._applies():
            assert self.steps_per_epoch is not None
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Put the learning rate into `logs`, under the name that Keras uses."""
        if logs is not None:
            logs["learning_rate"] = self._current()

    def _applies(self) -> bool:
        return self.start_epoch <= self.current_epoch and (
            self.end_epoch is None or self.current_epoch < self.end_epoch
        )

    def _current(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _adjust(self, epoch: float) -> None:
        rate = self.initial_lr * self.multiplier(epoch)
        self.model.optimizer.learning_rate = rate
        # Round as the variable does, so that rounding alone is no change. Reading the variable
        # would wait for the current step.
        dtype = tf.as_dtype(self.model.optimizer.learning_rate.dtype)
        old, new = self._rate, float(dtype.as_numpy_dtype(rate))
        self._rate = new
        if new == old:
            return
        optimizer = inner_optimizer(self.model.optimizer)
        if self.momentum_correction and old and getattr(optimizer, "momentum", None):
            # SGD and RMSprop name them differently.
            for name in ("momentums", "_momentums"):
                for velocity in getattr(optimizer, name, None) or ():
                    velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from `initial_lr / n` to `initial_lr`, batch by batch.

    For an `initial_lr` that was scaled by n, the number of ranks with examples of their own: Goyal
    et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour" (2017). These are the ranks
    that the optimizer reduces over, or on a grid the model groups. With `epoch` as a fraction, `lr
    = initial_lr / n * (epoch * (n - 1) / warmup + 1)`.

    Args:
        initial_lr: the learning rate after the warm-up.
        warmup_epochs: the number of epochs of the warm-up.
        momentum_correction: scale the velocity of an optimizer with momentum by the same factor as
            the learning rate.
        steps_per_epoch: required if Keras does not know it.
        verbose: 1 to print a line on rank 0 when the warm-up is done.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._warmup,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Print a line on rank 0 after the last epoch of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose and place.rank() == 0:
            done = f"finished gradual learning rate warmup to {self._current():g}."
            print(f"\nEpoch {epoch + 1}: {done}")

    def _warmup(self, epoch: float) -> float:
        assert self.steps_per_epoch is not None
        shares = _shares(self.model)
        # Count from 1, so that the last batch of the warm-up has the rate initial_lr.
        epoch += 1 / self.steps_per_epoch
        return (epoch * (shares - 1) / self.warmup_epochs + 1) / shares


def _shares(model: keras.Model) -> int:
    """Return the number of ranks, or of groups of ranks, that have examples of their own."""
    exchange = exchange_of(model.optimizer)
    if exchange is None:
        return place.size()
    # In a hybrid every rank has examples of its own, and the split part gathers them.
    is_hybrid = any(getattr(x, "reads", None) == "examples" for x in model._flatten_layers())
    return or_all(exchange.reduction.process_set if is_hybrid else exchange.ranks).size()
