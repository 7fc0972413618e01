"""Horovod's callbacks, with Horovod's arguments and formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from ringar.job import place
from ringar.keras import callbacks as of_ringar
from ringar.keras import learning_rate

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


Variable: TypeAlias = tf.Variable | keras.Variable


class BroadcastGlobalVariablesCallback(of_ringar.BroadcastGlobalVariablesCallback):
    """Give all ranks the weights and the optimizer's state of one rank before the first batch.

    Weights that the first batch makes are broadcast after it.

    Args:
        root_rank: the rank whose state is taken.
        device: no effect.
        local_variables: variables, or one, of TensorFlow or Keras, that each rank keeps as they
            are.

    Raises:
        ValueError: one of `local_variables` is no variable.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Variable | Iterable[Variable] | None = None,
    ) -> None:
        super().__init__(root_rank)
        self.device = device
        self._local: list[Variable] = []
        if isinstance(local_variables, (tf.Variable, keras.Variable)):
            local_variables = [local_variables]
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Variable) -> None:
        """Keep a variable as it is on each rank.

        Raises:
            ValueError: it is no variable.
        """
        if not isinstance(var, (tf.Variable, keras.Variable)):
            raise ValueError(
                "BroadcastGlobalVariablesCallback expected variables of TensorFlow or Keras that "
                f"stay on their rank, received {var!r}"
            )
        self._local.append(var)

    def _broadcast_new_weights(self) -> bool:
        values = [(var, keras.ops.convert_to_numpy(var)) for var in self._local]
        has_new = super()._broadcast_new_weights()
        for var, value in values:
            var.assign(value)
        return has_new


class MetricAverageCallback(of_ringar.MetricAverageCallback):
    """Average the results of metrics over the ranks at the end of an epoch.

    It stands before callbacks that read metrics.

    Args:
        device: no effect.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device


class LearningRateScheduleCallback(learning_rate.LearningRateScheduleCallback):
    """Set the learning rate to `initial_lr * multiplier` from one epoch to another.

    A number as `multiplier` means exponential decay: `initial_lr * multiplier ** (epoch -
    start_epoch)`.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a number, or a function of the epoch.
        start_epoch: the first epoch in which it applies.
        end_epoch: the first epoch in which it no longer applies; None for no end.
        staircase: set the rate once per epoch; else before each batch, where the epoch is a
            fraction: `epoch + batch / steps_per_epoch`.
        momentum_correction: correct the momentum of the optimizer when the rate changes.
        steps_per_epoch: the batches of an epoch, where Keras does not know them.

    Raises:
        ValueError: `initial_lr` is None.
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
        rate = multiplier if callable(multiplier) else _decay(multiplier, start_epoch)
        super().__init__(
            initial_lr,
            rate,
            start_epoch,
            end_epoch,
            staircase,
            momentum_correction,
            steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Put the learning rate into `logs`, under Keras' name and Horovod's."""
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["lr"] = logs["learning_rate"]


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from `initial_lr / size` to `initial_lr`, batch by batch.

    With n ranks, `lr = initial_lr / n * (epoch * (n - 1) / warmup_epochs + 1)`, where the epoch is
    a fraction that counts batches from 1: Goyal et al., "Accurate, large minibatch SGD" (2017).

    Args:
        initial_lr: the learning rate after the warm-up.
        warmup_epochs: the epochs of the warm-up.
        momentum_correction: correct the momentum of the optimizer when the rate changes.
        steps_per_epoch: the batches of an epoch, where Keras does not know them.
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
        def rising(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            n = place.size()
            return ((epoch + 1 / self.steps_per_epoch) * (n - 1) / warmup_epochs + 1) / n

        super().__init__(
            initial_lr,
            rising,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Print a line on rank 0 after the last epoch of the warm-up."""
        super().on_epoch_end(epoch, logs)
        assert self.end_epoch is not None
        if epoch == self.end_epoch - 1 and self.verbose and place.rank() == 0:
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to "
                f"{self._current():g}."
            )


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Save the model whenever a metric is the best so far.

    Set the attribute `filepath` before `fit`: as in Horovod, no argument names the file.

    Args:
        monitor: the metric.
        verbose: as for `keras.callbacks.ModelCheckpoint`.
        save_weights_only: save no architecture and no optimizer.
        mode: "min", "max" or "auto".
        save_freq: "epoch", or a number of batches.

    Raises:
        ValueError: in `fit`, if `filepath` was not set.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            ".weights.h5" if save_weights_only else ".keras",  # Keras checks the end
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Check that there is a file to write."""
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint expected its attribute `filepath`, received None; set it "
                'before fit: checkpoint.filepath = "best.keras"'
            )
        super().on_train_begin(logs)


def _decay(base: float, start_epoch: int) -> Callable[[float], float]:
    return lambda epoch: base ** (epoch - start_epoch)
