"""Callbacks for `fit` on several ranks.

Most scripts need `Distributed` only. The other callbacks have Horovod's names, and one duty each.

No callback overrides a method that Keras calls at the end of a batch: such a method makes Keras
wait for the metrics of every step.
"""

from __future__ import annotations

from typing import Any

import keras

from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import checks, moving_statistics
from ringar.keras.first_batch import FirstBatch
from ringar.keras.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from ringar.keras.optimizer import grid_of
from ringar.keras.seeds import separate_seeds
from ringar.keras.synchronize import average_logs, broadcast_model, end_epoch

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "Distributed",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Give all ranks the weights and the optimizer state of one rank when training begins.

    Seeds stay each rank's own, so that dropout masks differ between ranks. A model that is built
    only by its first batch gets its weights after that batch: build it before `fit` where the first
    step has to count.

    Args:
        root_rank: the rank whose state is taken.
        process_set: the ranks that train together; by default all.
    """

    def __init__(self, root_rank: int = 0, process_set: ProcessSet | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self._pending = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcast, if the model is built."""
        self._pending = True
        if self.model.built:
            self._broadcast()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcast, if the model was built by the batch before this one."""
        if self._pending and self.model.built:
            self._broadcast()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcast, if the model was built by the only batch of the epoch."""
        if self._pending and self.model.built:
            self._broadcast()

    def _broadcast(self) -> None:
        self._pending = False
        broadcast_model(self.model, self.root_rank, self.process_set)


class MetricAverageCallback(keras.callbacks.Callback):
    """Average the metrics of an epoch over the ranks, for the callbacks after it.

    Put it before ReduceLROnPlateau, EarlyStopping, ModelCheckpoint and other readers of metrics.

    Args:
        process_set: the ranks that train together; by default all.
    """

    def __init__(self, process_set: ProcessSet | None = None) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the numbers in `logs` by their averages."""
        average_logs(logs, self.process_set)


class Distributed(BroadcastGlobalVariablesCallback):
    """Do all that `fit` needs on several ranks: broadcast, average metrics, check.

    - When training begins, all ranks get the weights and the optimizer state of `root_rank`, and
      Dropout and other random layers different seeds (`ringar.set_random_seed` has the rule).
    - At the end of an epoch, before validation, the moving statistics of `BatchNormalization`
      become those of all ranks' examples, so that all ranks evaluate and save the same model.
    - At the end of an epoch, metrics are averaged over the ranks, validation included, for the
      callbacks after it and for the history. The average is the same number on every rank, so that
      EarlyStopping and ReduceLROnPlateau decide alike everywhere.
    - Only rank 0 draws a progress bar.
    - All ranks raise an error if they would hang or drift apart: if they have different numbers of
      steps, models, learning rates or weights, or an optimizer that is not distributed; on a grid,
      if the ranks of a model group are given different examples.
    - Ranks that are given the same first batch, as they are without `ringar.data.shard`, get a
      warning (logger `ringar`).

    Put it first in the list. A callback before it sees the metrics of its own rank. That is right
    for a callback that stops for a reason of its rank alone, such as a time limit: if any rank sets
    `model.stop_training`, all ranks stop.

    Args:
        root_rank: the rank whose state is taken.
        process_set: the ranks that train together; by default all.
        check: compare the ranks' learning rates after each epoch, and their trainable weights after
            the first and the last epoch.

    Raises:
        ValueError: in `fit`, on every rank, if ranks are set up differently when training begins.
        MismatchError: in `fit`, on every rank, if learning rates or weights differ.
    """

    def __init__(
        self, root_rank: int = 0, process_set: ProcessSet | None = None, check: bool = True
    ) -> None:
        super().__init__(root_rank, process_set)
        self.check = check
        self._weights_compared = False
        self._examples_compared = False
        self._first_batch = FirstBatch(process_set)

    def set_params(self, params: dict[str, Any]) -> None:
        """Silence the progress bars of all ranks but one."""
        super().set_params(params)
        # Keras hands the same dictionary to the progress bar after this callback.
        ranks = or_all(self.process_set)
        if params and ranks.size() > 1 and ranks.rank() != 0:
            params["verbose"] = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Check that all ranks are set up alike, then broadcast."""
        self._weights_compared = self._examples_compared = False
        checks.check_start(self.model, self.params, self.process_set)
        checks.reset_examples(self.model)
        super().on_train_begin(logs)
        separate_seeds(self.model, self.process_set, grid_of(self.model.optimizer))
        self._first_batch.watch(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Check that the first batch was the same on all ranks of a model group."""
        super().on_train_batch_begin(batch, logs)
        if batch > 0:
            self._compare_examples()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Combine the moving statistics, which validation uses."""
        moving_statistics.combine(self.model, self.process_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the metrics, combine moving statistics, agree whether to stop, compare ranks."""
        super().on_epoch_end(epoch, logs)
        moving_statistics.combine(self.model, self.process_set)
        self._compare_examples()
        end_epoch(self.model, logs, self.process_set, check=self.check)
        if self.check and not self._weights_compared:
            checks.check_weights(self.model, self.process_set)
            self._weights_compared = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Check that all ranks hold the same weights."""
        if self.check:
            checks.check_weights(self.model, self.process_set)

    def _compare_examples(self) -> None:
        if not self._examples_compared:
            self._examples_compared = True
            checks.check_examples(self.model)
