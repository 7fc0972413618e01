"""Elastic training with `fit`, by a callback alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ringar.collectives import allgather_object, shares
from ringar.collectives.call import has_bound_graphs
from ringar.elastic import preemption
from ringar.elastic.comparison import Compared
from ringar.elastic.dataset import Dataset
from ringar.elastic.keras_state import KerasState
from ringar.elastic.running import GoOn, keep_running
from ringar.elastic.state import RanksChangeError
from ringar.job import membership, place
from ringar.job.process_sets import ProcessSet
from ringar.keras import callback_traits, training_state
from ringar.keras.backup import Backup
from ringar.keras.callbacks import Distributed
from ringar.keras.fitting import Coordinated


class _FitState(KerasState):
    """Keep what `fit` needs to go on: a model, callbacks, and the place in the data."""

    def __init__(self, model: keras.Model, scale_learning_rate: bool, epoch: int) -> None:
        super().__init__(model, epoch=epoch, done=0, counters=None, history=([], {}), size=0)
        self._scale_learning_rate = scale_learning_rate

    def save(self) -> None:
        """Copy all, and note the number of ranks to which the learning rate belongs."""
        self.size = place.size()
        super().save()

    def restore(self) -> None:
        """Restore everything, and scale the learning rate to the present number of ranks."""
        super().restore()
        self.scale_from(self.size)

    def compared(self) -> Compared:
        """Return nothing: `Distributed` compares when `fit` begins, in each world."""
        return Compared()

    def scale_from(self, size: int) -> None:
        """Scale the learning rate from `size` ranks to the present number of ranks."""
        if self._scale_learning_rate and size:
            optimizer = self.model.optimizer
            rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
            optimizer.learning_rate = rate * place.size() / size


class Elastic(Coordinated):
    """Let `fit` go on while ranks die, leave and join.

    Use it with `ringar.callbacks.Distributed()`, a `ringar.elastic.Dataset` as the data, and
    `ringarrun --min-np`. The callback commits the state of the training in the memory of each rank:
    weights, optimizer, the states of Keras' callbacks, seeds, epoch and place in the data. After
    the loss of a rank, `fit` goes on from the last commit with the others: in the same processes,
    and without tracing the training step again, unless its layers communicate. Ranks join, and
    those that have received SIGTERM leave, after one of the next batches, and nothing is lost.

    `on_train_begin` of the callbacks is called again for each change. In the rest of an epoch,
    batches count from 0, and its metrics leave out the counts of a lost rank.

    Args:
        every: the batches between two commits. A commit costs a copy of weights and optimizer.
        scale_learning_rate: change the learning rate in proportion to the number of ranks.

    Raises:
        ValueError: in `fit`, if the data are no `ringar.elastic.Dataset`, `Distributed` is missing,
            the model is not built, or a schedule sets the learning rate that is to be scaled.
        SystemExit: in `fit`, on a rank that has received SIGTERM, with exit code 143.

    Example:
    ```python
    data = ringar.elastic.Dataset((x, y), batch_size=32, shuffle=True)
    callbacks = [ringar.callbacks.Distributed(), ringar.callbacks.Elastic()]
    model.fit(data, epochs=10, callbacks=callbacks)
    ```
    """

    def __init__(self, every: int = 20, scale_learning_rate: bool = False) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"`every` must be 1 or more. Received: every={every}")
        self.every, self.scale_learning_rate = every, scale_learning_rate
        self._state: _FitState | None = None
        self._data: Dataset | None = None
        self._steps = self._since = self._epoch = 0
        self._is_partial = False  # the epoch began after a commit
        self._callbacks: list[keras.callbacks.Callback] = []
        self._has_writers = False  # with state, which the first rank alone knows

    def fit(
        self,
        model: keras.Model,
        call: inspect.BoundArguments,
        original: Callable[..., keras.callbacks.History],
    ) -> keras.callbacks.History:
        """Call Keras' `fit` until the training has ended."""
        arguments = call.arguments
        self._data = _checked(arguments.get("x"), arguments["callbacks"])
        if self.scale_learning_rate:
            _check_rate(model)
        self._state = state = _FitState(
            model, self.scale_learning_rate, arguments.get("initial_epoch", 0)
        )

        def train() -> keras.callbacks.History:
            assert self._data is not None
            if has_bound_graphs():
                model.train_function = None
            self._data.go_to(state.epoch, state.done)
            self._is_partial = state.done > 0
            arguments["shuffle"] = False  # of batches, whose order tells how far an epoch has come
            arguments["initial_epoch"] = state.epoch
            arguments["callbacks"] = list(callbacks)
            return original(*call.args, **call.kwargs)

        callbacks = list(arguments["callbacks"])
        return keep_running(state, train)

    def begin_training(
        self, callbacks: list[keras.callbacks.Callback], process_set: ProcessSet | None, steps: int
    ) -> None:
        """Restore the state, over the effects of the callbacks at the beginning."""
        self._callbacks, self._steps, self._since = callbacks, steps, 0
        has_writers = any(callback_traits.writes(c) and callback_traits.state(c) for c in callbacks)
        self._has_writers = any(allgather_object(has_writers, name="elastic/callbacks"))
        assert self._state is not None
        if self._state.counters is None:  # a commit of callbacks that have just begun
            self._keep(self._state.epoch, self._state.done)
        self._restore()

    def _restore(self) -> None:
        """Go back to the last commit: variables, callbacks, History."""
        assert self._state is not None
        self._state.restore()
        training_state.set_counters(self._callbacks, self._state.counters)
        if history := self._history():
            epochs, values = self._state.history
            history.epoch, history.history = list(epochs), {k: list(v) for k, v in values.items()}

    def resumes(self, backup: Backup) -> bool:
        """Go on from the backup, if it is further than the commit."""
        assert self._state is not None
        assert self._data is not None
        backup.rows_after = self._data.done_after
        point = backup.find_rows()
        if point is not None and point > (self._state.epoch, self._state.done):
            backup.restore()
            self._state.scale_from(backup.ranks)
            self._keep(*point)
            raise GoOn  # Keras has asked for the number of batches
        self._restore()  # looking at the backup has loaded it
        return True

    def after_epoch_begin(self, epoch: int) -> None:
        """Go to the data of the epoch; if it is resumed, undo what callbacks did as it began."""
        assert self._state is not None
        assert self._data is not None
        self._epoch = epoch
        self._data.go_to(epoch, self._state.done if self._is_partial else 0)
        if self._is_partial:
            self._restore()

    def before_batch(self, batch: int) -> None:
        """Commit, if it is time; let ranks in and out."""
        assert self._data is not None
        together = self._data.batch_size * place.size()
        # A world with more ranks than rows would have ranks without any.
        if batch == 0 or self._data.rows - self._data.done_after(batch) < together:
            return
        if shares.stop_was_seen():
            self._change_if_wanted(batch)
        self._ask(batch)
        self._since += self.model.steps_per_execution
        if self._since >= self.every:
            self._keep(self._epoch, self._data.done_after(batch))

    def after_epoch_end(self, epoch: int) -> None:
        """Commit, and let ranks in and out."""
        assert self._state is not None
        self._keep(self.params["epochs"] if self.model.stop_training else epoch + 1, 0)
        if not self.model.stop_training:
            self._state.check_for_changes()
            if self._is_partial:
                raise GoOn  # Keras asks for the number of batches once only

    def _ask(self, batch: int) -> None:
        """Ask all ranks, along with this batch's gradients, to look for changes.

        They see the request before the next batch, which must be a batch of all ranks.
        """
        if (preemption.is_requested() or membership.is_change_due()) and (
            batch + 2 * self.model.steps_per_execution < self._steps
        ):
            shares.ask_to_stop(True)

    def _change_if_wanted(self, batch: int) -> None:
        leaves = preemption.is_requested()
        wishes = (leaves or membership.is_change_due(), bool(self.model.stop_training))
        is_due, stops = np.any(allgather_object(wishes, name="elastic/changes"), axis=0)
        if is_due and not stops:
            assert self._data is not None
            self._keep(self._epoch, self._data.done_after(batch))
            raise RanksChangeError(leaves)

    def _keep(self, epoch: int, done: int) -> None:
        assert self._state is not None
        self._since = 0
        self._state.epoch, self._state.done = epoch, done
        if self._has_writers:  # another rank may be the first soon
            training_state.share_writers(self._callbacks, None, "elastic/callbacks")
        self._state.counters = training_state.counters(self._callbacks)
        if history := self._history():
            self._state.history = (history.epoch, history.history)
        self._state.keep()

    def _history(self) -> keras.callbacks.History | None:
        return next((c for c in self._callbacks if isinstance(c, keras.callbacks.History)), None)


def _checked(data: Any, callbacks: Any) -> Dataset:
    where = f"rank {place.rank()} | Elastic: expected"
    if not any(isinstance(callback, Distributed) for callback in callbacks):
        raise ValueError(f"{where} ringar.callbacks.Distributed() in the list, received none")
    if not isinstance(data, Dataset):
        raise ValueError(
            f"{where} a ringar.elastic.Dataset, which can go on with another number of ranks, "
            f"received {type(data).__name__}; wrap your arrays: "
            "ringar.elastic.Dataset((x, y), batch_size=32, shuffle=True)"
        )
    return data


def _check_rate(model: keras.Model) -> None:
    schedule = getattr(model.optimizer, "_learning_rate", None)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        raise ValueError(
            f"rank {place.rank()} | Elastic(scale_learning_rate=True): expected an optimizer whose "
            f"learning rate is a number, received {type(schedule).__name__}"
        )
