"""Callbacks for `fit` on several ranks.

Most scripts need `Distributed` only. The other callbacks have Horovod's names, and one duty each.

No callback overrides a method that Keras calls at the end of a batch: such a method makes Keras
wait for the metrics of every step.
"""

from __future__ import annotations

import warnings

import keras

from ringar import hooks
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import (
    checks,
    keras_2,
    layer_state,
    moving_statistics,
    share,
)
from ringar.keras.combine_rules import Combine
from ringar.keras.exchange import exchange_of
from ringar.keras.first_batch import FirstBatch
from ringar.keras.joining import Epochs
from ringar.keras.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from ringar.keras.metrics import Metrics
from ringar.keras.optimizer import grid_of
from ringar.keras.save_on_signal import SaveOnSignal
from ringar.keras.seeds import separate_seeds
from ringar.keras.synchronize import average_logs, broadcast_model
from ringar.keras.tuning import fit as tuning

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "Distributed",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "SaveOnSignal",
]


class BroadcastGlobalVariablesCallback(keras_2.Callback):
    """Give all ranks the weights and the optimizers' state of one rank when training begins.

    Optimizers are that of `compile`, and those that are attributes of the model or of a model in
    it. Seeds stay each rank's own, so that dropout masks differ between ranks.

    Weights that the first batch makes are broadcast after that batch: build the model before `fit`
    where the first step has to count. Weights that a later step makes are broadcast at the end of
    the epoch, with a warning: until then they differ between ranks.

    Args:
        root_rank: the rank of the job whose state is taken; by default the first that trains.
        process_set: the ranks that train together; by default all.
        check: compare what layers hold beside their weights, such as vocabularies.

    Raises:
        ValueError: in `fit`, on every rank, if layers hold different things (`ringar.data.adapt`).
    """

    def __init__(
        self,
        root_rank: int | None = None,
        process_set: ProcessSet | None = None,
        check: bool = True,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self.check = check
        self._weights = 0  # that have been broadcast
        self._batches_begun = 0  # up to 2

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Compare what layers hold beside their weights, then broadcast the weights."""
        if self.check:
            layer_state.check(self.model, self.process_set)
        self._weights = self._batches_begun = 0
        self._broadcast_new_weights()

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Broadcast, if the first batch has made weights."""
        if self._batches_begun < 2:
            self._batches_begun += 1
            if self._batches_begun == 2:
                self._broadcast_new_weights()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Broadcast, if the epoch has made weights."""
        before = self._weights
        if self._broadcast_new_weights() and self._batches_begun == 2:
            names = ", ".join(weight.path for weight in self.model.weights[before:][:5])
            warnings.warn(
                f"Weights were made after the first step and differed between ranks until now: "
                f"{names}. Build the model before `fit`.",
                stacklevel=2,
            )

    def _broadcast_new_weights(self) -> bool:
        count = len(self.model.weights)
        if count == self._weights:
            return False
        self._weights = count
        root = self.root_rank
        if root is None:
            root = or_all(self.process_set).ranks[0]
        broadcast_model(self.model, root, self.process_set)
        return True


class MetricAverageCallback(keras_2.Callback):
    """Average the results of metrics over the ranks at the end of an epoch, as in Horovod.

    Put it before ReduceLROnPlateau, EarlyStopping, ModelCheckpoint and other readers of metrics.

    The average of the results is the result for the data of all ranks only if the metric is a mean
    over examples, such as a loss or an accuracy, and all ranks have equally many examples. It is
    wrong for a root mean square, an AUC, a precision or an F-score. `Distributed` combines these.

    Args:
        process_set: the ranks that train together; by default all.
    """

    def __init__(self, process_set: ProcessSet | None = None) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Replace the numbers in `logs` by their averages."""
        average_logs(logs, self.process_set)


class Distributed(BroadcastGlobalVariablesCallback):
    """Do all that `fit` and `evaluate` need on several ranks: broadcast, combine metrics, check.

    - When training begins, all ranks get the weights and the optimizer state of `root_rank`, and
      Dropout and other random layers different seeds (`ringar.set_random_seed` has the rule).
    - At the end of an epoch, before validation, the moving statistics of `BatchNormalization`
      become those of all ranks' examples, so that all ranks evaluate and save the same model.
      Other weights that no gradient changes follow `combine`.
    - Layers hold the same vocabularies, statistics and arguments on all ranks when training begins
      (`ringar.data.adapt`).
    - At the end of an epoch, metrics are those of all ranks' data, validation included, for the
      callbacks after it and for the history. `evaluate` returns such metrics, too, and ranks may
      have different numbers of batches and rows there. Every rank gets the same numbers, so that
      EarlyStopping and ReduceLROnPlateau decide alike everywhere. The states of metrics are
      combined: all of `keras.metrics` have the result of one process with the batches of all
      ranks. States are added up; a metric of your own whose state is no sum combines states by a
      method `combine_states`. Numbers in the logs that no metric has, such as a loss that a
      `train_step` of yours returns as it is, are averaged, with a warning if they differ.
    - Only rank 0 draws a progress bar.
    - Ranks may have different numbers of batches. A rank without further batches joins in the
      steps of the others, with a weight of zero, and has their weights at the end of the epoch.
    - If any callback of any rank sets `model.stop_training`, at whatever batch, all ranks stop
      after the same step, a batch or two later.
    - All ranks raise an error if they would hang or drift apart: if they have different models,
      weights or settings (optimizer, exchange, loss, dtype policy), or an optimizer that is not
      distributed; if learning rates differ at the end of an epoch; if they have different numbers
      of steps and layers that communicate; on a grid, if the ranks of a model group are given
      different examples.
    - Ranks that are given the same first batch, as they are without `ringar.data.shard`, get a
      warning (logger `ringar`).
    - Rank 0 alone writes files: ModelCheckpoint, CSVLogger, TensorBoard, ProgbarLogger and
      RemoteMonitor do nothing on other ranks. A checkpoint appears whole or not at all.
    - BackupAndRestore takes all ranks back to the same step, with the same weights, optimizer and
      callbacks, and each rank to its own seeds and metrics.

    Keras' own callbacks may stand before it or after it. A callback of yours that stands before it
    sees the metrics of its own rank.

    With `ringar.Downpour` workers do not wait for each other: after the beginning, each has its own
    metrics, validation and end.

    Args:
        root_rank: the rank of the job whose state is taken; by default the first that trains.
        process_set: the ranks that train together; by default those of the optimizer of `compile`.
        check: compare what layers hold beside their weights when training begins, the ranks'
            learning rates after each epoch, and their trainable weights after the first and the
            last epoch.
        replay_data: when a backup is restored, draw the batches of the epochs before it again,
            without training on them, so that the order of the data goes on as it was. With False
            only those of the epoch itself are drawn: right if the order of an epoch depends on its
            number alone, or does not matter.
        combine: how weights that no gradient changes, such as the queue of a contrastive loss or a
            counter, become the same at the end of an epoch: a rule for all but "sum", or a dict by
            the path of a weight or the end of it (`"moco/queue"`, `"*_count"`). Without a rule,
            such a weight must be equal on all ranks. `BatchNormalization` and states of recurrent
            layers need none.

            - "mean": the mean of the ranks' values.
            - "sum": the value before the epoch plus what all ranks have added to it.
            - "first": the value of the first rank.
            - "concatenate": the r-th of equal parts of the rows is that of rank r.
            - "own": each rank keeps its own.

    Raises:
        MismatchError: in `fit`, on every rank, if ranks are set up differently when training
            begins, or if learning rates or weights differ later.
    """

    def __init__(
        self,
        root_rank: int | None = None,
        process_set: ProcessSet | None = None,
        check: bool = True,
        replay_data: bool = True,
        combine: Combine | None = None,
    ) -> None:
        super().__init__(root_rank, process_set, check)
        hooks.install("callbacks of several ranks")
        self._combination = moving_statistics.Combination(combine)
        self.replay_data = replay_data
        self._weights_compared = False
        self._examples_compared = False
        self._first_batch = FirstBatch(process_set)
        self._epochs: Epochs | None = None
        self._metrics = Metrics(process_set)
        self._together: tuple[ProcessSet | None, Metrics] | None = None  # while it is alone
        self.meets = True
        self.tuner: tuning.FitTuner | None = None  # which the list of callbacks calls

    def take_ranks(self, model: keras.Model) -> None:
        """Take the ranks of the optimizer of `model`, if no others were given.

        Args:
            model: a model, compiled or not.
        """
        self._meet_again()
        optimizer = getattr(model, "optimizer", None)
        exchange = exchange_of(optimizer) if optimizer is not None else None
        self.meets = exchange is None or exchange.period.meets
        ranks = None if exchange is None else exchange.reduction.process_set
        if self.process_set is None and ranks is not None:
            self.process_set = ranks
            self._first_batch = FirstBatch(self.process_set)
            self._metrics = Metrics(self.process_set)

    def set_model(self, model: keras.Model) -> None:
        """Observe the training step of `model`, which Keras builds next."""
        super().set_model(model)
        hooks.install("distributed training")
        share.watch(model)

    def set_params(self, params: dict[str, object]) -> None:
        """Silence the progress bars of all ranks but one."""
        super().set_params(params)
        # Keras hands the same dictionary to the progress bar after this callback.
        ranks = or_all(self.process_set)
        if params and ranks.size() > 1 and ranks.rank() != 0:
            params["verbose"] = 0

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Check that all ranks are set up alike, then broadcast."""
        self._weights_compared = self._examples_compared = False
        steps = checks.check_start(self.model, self.params, self.process_set)
        checks.reset_examples(self.model)
        super().on_train_begin(logs)
        separate_seeds(self.model, self.process_set, grid_of(self.model.optimizer))
        least = None if None in steps else min(count for count in steps if count is not None)
        self.tuner = tuning.begin(self.model, self.process_set, least, self.meets)
        if self.meets:
            self._first_batch.watch(self.model)
        else:
            self._go_alone()
            steps = [self.params.get("steps")]
        self._metrics.begin_training(self.model)
        self._epochs = Epochs(self.model, steps, self.process_set)
        # Warm-ups and schedules after this callback count in steps of all ranks.
        if self._epochs.limit is not None:
            self.params["steps"] = self._epochs.limit

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Begin to count the steps of the epoch."""
        assert self._epochs is not None
        self._epochs.begin()
        self._combination.begin_epoch(self.model)
        if self.tuner is not None:
            self.tuner.begin_epoch()

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Join the ranks that still train, and make the evaluation that of all ranks' data."""
        if self._epochs is not None:
            self._epochs.leave()
        self._combine()
        self._metrics.begin_evaluation(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Check that the first batch was the same on all ranks of a model group."""
        assert self._epochs is not None
        self._epochs.look()
        super().on_train_batch_begin(batch, logs)
        if batch == 1:
            self._metrics.check(self.model)
        if batch > 0:
            self._compare_examples()
        if batch >= self._epochs.common:
            self._combination.look(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Join the ranks that still train, combine their metrics and statistics."""
        assert self._epochs is not None
        self._epochs.leave()
        super().on_epoch_end(epoch, logs)
        self._combine()
        self._compare_examples()
        logs = {} if logs is None else logs
        self._metrics.end_epoch(self.model, logs)
        average_logs(logs, self.process_set)
        if self.check and not self._weights_compared:
            checks.check_weights(self.model, self.process_set)
            self._weights_compared = True

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """End the tuner's training, and meet the other ranks again."""
        if self.tuner is not None:
            self.tuner.end_training()
        self._meet_again()

    def _combine(self) -> None:
        """Make weights that no gradient changes the same on all ranks."""
        furthest = 0 if self._epochs is None else self._epochs.furthest
        self._combination.combine(self.model, self.process_set, furthest)

    def _go_alone(self) -> None:
        """Meet no other rank until the end of the training."""
        self._together = self.process_set, self._metrics
        self.process_set = ProcessSet([place.rank()])
        self._metrics = Metrics(self.process_set)

    def _meet_again(self) -> None:
        if self._together is not None:
            self.process_set, self._metrics = self._together
            self._together = None

    def _compare_examples(self) -> None:
        if not self._examples_compared:
            self._examples_compared = True
            checks.check_examples(self.model)
