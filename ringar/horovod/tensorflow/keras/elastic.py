"""Horovod's elastic training for Keras: the state of a model, and the callbacks that keep it."""

from __future__ import annotations

from typing import Any

import keras

from ringar.horovod.common.elastic import State
from ringar.horovod.tensorflow.elastic import TensorFlowKerasState, run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """Keep a model of Keras, its optimizer, and further objects.

    Args:
        model: a built model.
        optimizer: its optimizer, if it was not compiled with one.
        **kwargs: attributes of the state, such as `batch=0, epoch=0`.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, optimizer=optimizer, **kwargs)


class CommitStateCallback(keras.callbacks.Callback):
    """Commit a state after every `batches_per_commit` batches, and at the end of each epoch.

    Args:
        state: the state.
        batches_per_commit: the batches between two commits.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Count batches from 0, on all ranks."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Commit, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keep the number of the batch in `state.batch`; 0 at the end of an epoch.

    Args:
        state: the state.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Forget the number of steps, which may be another one with other ranks."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Let callbacks see the steps that are left of an epoch."""
        if steps := self.params.get("steps"):
            self.steps_per_epoch = self.steps_per_epoch or steps
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Note the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Begin with the first batch again."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keep the number of epochs that are done in `state.epoch`, also over several calls of `fit`.

    Args:
        state: the state.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Note the epochs that were done before; Keras counts from 0."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Count the epoch."""
        self.state.epoch = self.initial_epoch + epoch + 1
