"""A shard: some variables of a model, and their updates by the pushes of workers.

There is no communication here. The same code runs on a serving rank, in a replay and in a
simulation, which therefore compute the same bits.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import keras
import numpy as np

from ringar.asynchronous import gradients as of_pushes
from ringar.asynchronous.applying import Variables
from ringar.asynchronous.gradients import Gradient, Rows
from ringar.asynchronous.log import DROPPED, HELD, LOST, Entry
from ringar.asynchronous.staleness import Arrival, StalenessControl, mean_factor

__all__ = ["Entry", "Push", "Rows", "Shard"]


@dataclass(frozen=True)
class Push:
    """Hold the gradients of a worker's step for a shard.

    Attributes:
        worker: the worker's number, from 0.
        step: the number of this worker's push, from 0.
        version: the version that the gradients were computed from; -1 without a pull.
        gradients: a gradient per variable of the shard, of its shape and dtype: an array, `Rows`,
            or None.
    """

    worker: int
    step: int
    version: int
    gradients: Sequence[Gradient]

    @property
    def arrival(self) -> Arrival:
        """The push without its gradients."""
        return Arrival(self.worker, self.step, self.version)


class Shard:
    """Hold variables with an optimizer of their own, and update them by the pushes of workers.

    Args:
        number: the shard's number.
        values: the variables' values to begin with.
        optimizer: an optimizer of Keras, not built, for this shard alone.
        control: which pushes make an update, and which workers wait.
        workers: the number of workers, which are numbered from 0.
        names: the variables' names, as in the model.
        traced: whether an update is a `tf.function`. False is for a thread of a process whose
            TensorFlow may have no thread left for it.
        log_size: how many entries the log keeps, the newest; None for all, which a replay needs.
        originals: for each value the model's variable of which it has rows. Constraints and
            exclusions from weight decay are those of the model's variables.

    Attributes:
        number: the shard's number.
        version: the number of updates applied.
        staleness: how many pushes of each staleness were applied.
        rates: the learning rates that were set, as pairs of a version and the rate from it on.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        number: int,
        values: Sequence[np.ndarray],
        optimizer: keras.optimizers.Optimizer,
        control: StalenessControl,
        workers: int,
        names: Sequence[str] = (),
        traced: bool = True,
        log_size: int | None = None,
        *,
        originals: Sequence[keras.Variable] = (),
    ) -> None:
        self.number = number
        self.control = control
        self.version = 0
        self.staleness = collections.Counter[int]()
        self.rates: list[tuple[int, float]] = []
        self._entries = collections.deque[Entry](maxlen=log_size)
        self._workers = workers
        self._judge = control.judge(workers)
        self._variables = Variables(values, optimizer, names, traced, originals)
        self._sequence = 0
        self._queue: dict[Arrival, tuple[int, Push]] = {}  # with their sequence

    @property
    def log(self) -> list[Entry]:
        """An entry per push, in the order in which pushes were taken."""
        return list(self._entries)

    @property
    def taken(self) -> int:
        """The number of pushes taken."""
        return self._sequence

    def take(self, push: Push) -> bool:
        """Take the next push of a worker: apply it, hold it for a later update, or drop it.

        A push that does not fit changes nothing. Its arrays may be used again after the call.

        Args:
            push: the push of the worker's next step.

        Returns:
            Whether `version` has changed.

        Raises:
            MismatchError: if the worker or step is not the expected one, the version is no version
                of this shard up to now, or a shape, dtype or row does not fit.
        """
        arrival, version = push.arrival, self.version
        self._judge.check(arrival, version)
        self._check_gradients(push)
        is_kept = self._judge.take(arrival, version)
        self._log(self._sequence, push, HELD if is_kept else DROPPED)
        if is_kept:
            self._queue[arrival] = (self._sequence, push)
        self._sequence += 1
        self._update()
        if arrival in self._queue:
            gradients = [of_pushes.copy(gradient) for gradient in push.gradients]
            self._queue[arrival] = (self._sequence - 1, replace(push, gradients=gradients))
        return self.version != version

    def limit(self, worker: int) -> int:
        """Return the number of pushes after which a worker must wait.

        Args:
            worker: the worker's number.

        Returns:
            A number that does not decrease: the worker may begin its step s if s is below it.
            `staleness.UNLIMITED` if it never waits.
        """
        return self._judge.limit(worker)

    def pushes(self, worker: int) -> int:
        """Return how many pushes of a worker were taken, which is the number of its next step."""
        return self._judge.clocks[worker]

    def note_lost(self, worker: int, version: int) -> None:
        """Note in the log that the next push of a worker, which has died, never came.

        Args:
            worker: the worker's number.
            version: that of this shard from which it has computed the push.
        """
        step, staleness = self.pushes(worker), self.version - version
        entry = Entry(-1, self.number, worker, step, version, staleness, False, LOST)
        self._entries.append(entry)

    def leave(self, worker: int) -> bool:
        """Wait no longer for a worker, which has ended or died. Its pushes count.

        Args:
            worker: the worker's number. It may have left before.

        Returns:
            Whether `version` has changed: an update may have waited for the worker.
        """
        version = self.version
        self._judge.leave(worker)
        self._update()
        return self.version != version

    def update(self, pushes: Sequence[Push]) -> None:
        """Apply pushes as one update, without the staleness control. The log is not changed.

        Args:
            pushes: one or more pushes; their order does not matter.

        Raises:
            MismatchError: if a shape, dtype or row does not fit.
        """
        for push in pushes:
            self._check_gradients(push)
        self._apply(sorted(pushes, key=lambda push: push.arrival))

    def values(self) -> list[np.ndarray]:
        """Return copies of the variables."""
        return self._variables.values()

    def arrays(self) -> list[np.ndarray]:
        """Return arrays on the variables' memory, which the next update may change."""
        return self._variables.arrays()

    def take_averages(self) -> bool:
        """Set the variables to the averages of an optimizer with `use_ema`, if there was a step.

        Returns:
            Whether there are such averages.
        """
        return self.version > 0 and self._variables.take_averages()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the optimizer, without a factor for staleness.

        Set it to change the rate of later updates. An optimizer that follows a schedule keeps it.
        """
        return float(keras.ops.convert_to_numpy(self._variables.optimizer.learning_rate))

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if self._variables.follows_schedule:
            return
        former = self.learning_rate
        self._variables.optimizer.learning_rate = rate
        if self.learning_rate != former:
            self.rates.append((self.version, rate))

    def state(self) -> dict[str, np.ndarray]:
        """Return all that `load` needs to go on with the same bits; the log is no part of it."""
        queue = [(sequence, *arrival) for arrival, (sequence, _) in self._queue.items()]
        judge = self._judge
        return {
            **_numbered("value", self._variables.values()),
            **_numbered("slot", self._variables.slots()),
            "version": np.array(self.version, np.int64),
            "taken": np.array(self._sequence, np.int64),
            "clocks": np.array(judge.clocks, np.int64),
            "active": np.array([worker in judge.active for worker in range(self._workers)]),
            "held": np.array(queue, np.int64).reshape(-1, 4),
            **_held_arrays([push for _, push in self._queue.values()]),
        }

    def load(self, state: Mapping[str, np.ndarray], *, restart: bool = False) -> None:
        """Go on from a `state`.

        Args:
            state: that of a shard with the same variables, optimizer and control.
            restart: workers start anew, at step 0, and may be more or fewer. Held pushes are left
                out, since their workers have not seen the update.

        Raises:
            ValueError: if the state has other variables, or other workers without `restart`.
        """
        values, slots = _in_order(state, "value"), _in_order(state, "slot")
        self._check_state(values, slots)
        if not restart and len(state["clocks"]) != self._workers:
            raise ValueError(
                f"The state of shard {self.number} has {len(state['clocks'])} workers. Expected: "
                f"{self._workers}. Load it with restart=True to train on with other workers."
            )
        self._variables.assign(values, slots)
        self.version, self._sequence = int(state["version"]), int(state["taken"])
        self.rates, self._queue = [], {}
        self._entries.clear()
        self.staleness.clear()
        self._judge = self.control.judge(self._workers)
        if not restart:
            self._judge.clocks = [int(clock) for clock in state["clocks"]]
            self._judge.active = {int(worker) for worker in np.flatnonzero(state["active"])}
            self._load_held(state)

    def _check_gradients(self, push: Push) -> None:
        source = f"The push of worker {push.worker}, step {push.step}, to shard {self.number}"
        of_pushes.check(push.gradients, self._variables.kinds, source)

    def _check_state(self, values: Sequence[np.ndarray], slots: Sequence[np.ndarray]) -> None:
        for name, received, expected in (
            ("variables", values, self._variables.values()),
            ("slots", slots, self._variables.slots()),
        ):
            pair = received, expected
            of_state, of_shard = ([array.shape for array in arrays] for arrays in pair)
            if of_state != of_shard:
                raise ValueError(
                    f"The state has {name} of the shapes {of_state}. Expected for shard "
                    f"{self.number}: {of_shard}. Use its model, optimizer and shards."
                )

    def _load_held(self, state: Mapping[str, np.ndarray]) -> None:
        for index, (sequence, worker, step, version) in enumerate(state["held"].tolist()):
            gradients = [
                _loaded_gradient(state, f"held/{index}/{variable}")
                for variable in range(len(self._variables.kinds))
            ]
            push = Push(worker, step, version, gradients)
            self._queue[push.arrival] = (sequence, push)
            self._judge.queue.append(push.arrival)
            self._log(sequence, push, HELD)

    def _update(self) -> None:
        """Apply all updates that are complete."""
        while arrivals := self._judge.next_update():
            number = self.version
            pushes = [self._queue.pop(arrival) for arrival in arrivals]
            self._apply([push for _, push in pushes])
            for sequence, push in pushes:
                self._record(sequence, number, number - push.version)

    def _apply(self, pushes: Sequence[Push]) -> None:
        factors = [self.control.factor(self.version - push.version) for push in pushes]
        means = [
            of_pushes.weighted_mean(gradients, factors)
            for gradients in zip(*(push.gradients for push in pushes), strict=True)
        ]
        self._variables.update(means, mean_factor(factors))
        self.version += 1

    def _log(self, sequence: int, push: Push, update: int) -> None:
        """Add an entry for a push that is no part of an update, or not yet."""
        staleness = self.version - push.version
        entry = Entry(sequence, self.number, *push.arrival, staleness, False, update)
        self._entries.append(entry)

    def _record(self, sequence: int, update: int, staleness: int) -> None:
        """Count a push that is part of an update, and complete its entry in the log."""
        self.staleness[staleness] += 1
        for index in range(len(self._entries) - 1, -1, -1):
            entry = self._entries[index]
            if entry.sequence == sequence:
                entry = entry._replace(staleness=staleness, applied=True, update=update)
                self._entries[index] = entry
            if 0 <= entry.sequence <= sequence:
                return


def _numbered(name: str, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{name}/{index}": array for index, array in enumerate(arrays)}


def _in_order(state: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Return the arrays that `_numbered` has named."""
    count = sum(key.startswith(f"{name}/") for key in state)
    return [state[f"{name}/{index}"] for index in range(count)]


def _held_arrays(pushes: Sequence[Push]) -> dict[str, np.ndarray]:
    """Return the gradients of pushes under names; None has none."""
    arrays = {}
    for index, push in enumerate(pushes):
        for variable, gradient in enumerate(push.gradients):
            name = f"held/{index}/{variable}"
            if isinstance(gradient, Rows):
                arrays[f"{name}/indices"] = gradient.indices
                arrays[f"{name}/values"] = gradient.values
            elif gradient is not None:
                arrays[name] = gradient
    return arrays


def _loaded_gradient(state: Mapping[str, np.ndarray], name: str) -> Gradient:
    if f"{name}/indices" in state:
        return Rows(state[f"{name}/indices"], state[f"{name}/values"])
    return state.get(name)
