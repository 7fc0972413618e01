"""Autotune in `fit`: which models are tuned, and how their training functions change.

The settings of a step are read while it is traced. So a change means another training function. A
function is kept as long as its settings may come back, with the record of its collectives.

All ranks change before the same batch. A rank that stops alone, or whose data end early, leaves its
epoch before the others know. It then repeats the collectives of its last step, so that no setting
may change: it goes on counting steps, and says at the end of each window that it has left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras

from ringar.collectives import allgather_object, shares
from ringar.job import log, membership, mpi
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import share, tuned
from ringar.keras.buckets import Spec
from ringar.keras.tuned import DEFAULTS, Settings
from ringar.keras.tuning import clock, options
from ringar.keras.tuning.space import Job
from ringar.keras.tuning.tuner import Tuner

_log = log.logger(__name__)


class FitTuner:
    """Tune the steps of a model, which holds this object, through all calls of `fit`.

    Args:
        model: the model, which has a training function.
        job: the job that the settings are for.
        ranks: those that train together.
    """

    def __init__(self, model: keras.Model, job: Job, ranks: ProcessSet) -> None:
        self._model = model
        self._functions: dict[Settings, tuple[Any, share.Step | None]] = {}
        self.job = job
        self._steps = 0
        self._next: int | None = None  # the batch that follows
        self._is_out = False  # of this epoch, since a rank leaves
        self._done = 0  # steps of the batch that has begun
        self._begun_at = 0
        self._settings = DEFAULTS
        if tuned.of(model) != DEFAULTS:  # of an earlier search
            tuned.give(model, DEFAULTS)
            model.make_train_function(force=True)
        self._tuner = Tuner(job, options.read(os.environ), ranks, lambda: clock.now())
        self._change()

    @property
    def progress(self) -> tuple[object, ...]:
        """The state that is the same on ranks which go on with a search."""
        return self._settings, self._tuner.is_done, self._tuner.measured

    @property
    def is_done(self) -> bool:
        """Whether the settings stay."""
        return self._tuner.is_done

    def rest(self) -> None:
        """Take no part in a training that is not tuned; leave it no settings that were only tried.

        Settings that an elastic job has chosen do not stay either: new ranks do not know them.
        """
        self._is_out = True
        if not self.is_done or membership.is_elastic():
            self._functions.clear()  # the model may have been compiled anew
            self._use(DEFAULTS)

    def begin(self, steps: int) -> None:
        """Begin a training, of epochs in which all ranks have `steps` steps."""
        self._steps = steps
        self._tuner.begin_window()
        self._functions.clear()  # the model may have been compiled anew
        self._change()

    def begin_epoch(self) -> None:
        """Begin an epoch on all ranks."""
        self._next, self._is_out = None, False
        self._tuner.pause()

    def end_training(self) -> None:
        """End a training, perhaps before the search."""
        self._tuner.end_training()

    def before_batch(self, batch: int) -> None:
        """Act before a batch that all ranks have."""
        self._begun_at = shares.steps()
        if self._step_begins(batch) or self._tuner.is_done:
            self._change()

    def leave(self) -> None:
        """End the epoch on this rank. Others may go on."""
        # A rank that stops has ended its last batch; one whose data ended has begun one in vain.
        stops = self._model.stop_training
        self._done = self._batch_steps if stops else shares.steps() - self._begun_at

    def before_missing_step(self) -> None:
        """Act before a step that others may take, and this rank does not."""
        if self._done == self._batch_steps:
            self._done = 0
            if self._next is not None and self._next < self._steps:
                self._step_begins(self._next, has_data=False)
        self._done += 1

    @property
    def _batch_steps(self) -> int:
        return int(self._model.steps_per_execution)

    def _step_begins(self, batch: int, has_data: bool = True) -> bool:
        if shares.stop_was_seen():
            self._is_out = True
        if self._is_out or self._tuner.is_done:
            return False
        if batch != self._next:
            self._tuner.pause()
        self._next = batch + self._batch_steps
        return self._tuner.step_begins(has_data)

    def _change(self) -> None:
        self._use(self._tuner.settings)
        if self._tuner.is_done:
            self._functions.clear()

    def _use(self, settings: Settings) -> None:
        """Give the model the training function for the settings."""
        model = self._model
        if settings != self._settings:
            self._functions[self._settings] = model.train_function, share.step_of(model)
            self._settings = settings
            tuned.give(model, settings)
            if settings in self._functions:
                model.train_function, step = self._functions[settings]
                share.return_to(model, step)
            else:
                model.make_train_function(force=True)


def of(model: keras.Model) -> FitTuner | None:
    """Return the object that tunes `model`, or has tuned it."""
    return getattr(model, "_ringar_tuner", None)


def begin(
    model: keras.Model, process_set: ProcessSet | None, steps: int | None, meets: bool
) -> FitTuner | None:
    """Begin to tune `model`, or go on, when a training begins. Collective, if the user asks for it.

    Args:
        model: the model, which has a training function.
        process_set: the ranks that train together.
        steps: the steps of an epoch that all ranks have; None if they are not known.
        meets: whether the ranks meet in collectives while they train.

    Returns:
        The tuner, to be called before each batch; None if nothing is tuned.

    Raises:
        ValueError: on every rank, if an option is wrong, or rank 0 cannot read or write a file.
        UnsupportedError: on every rank, if rank 0 lacks Optuna.
    """
    ranks, tuning = or_all(process_set), of(model)
    is_wanted = options.is_wanted(os.environ) and ranks.size() > 1
    obstacle = _obstacle(model, steps, meets) if is_wanted else ""
    if obstacle or not is_wanted:
        if tuning is not None:
            tuning.rest()
        if obstacle and tuned.of(model) == DEFAULTS and ranks.rank() == 0:
            _log.warning("Autotune: the defaults stay: %s.", obstacle)
        return None
    assert steps is not None
    job = _job(model, ranks)
    progress = tuning.progress if tuning is not None and tuning.job == job else None
    everyone = allgather_object(progress, name="autotune/progress", process_set=ranks)
    if progress is None or any(peer != progress for peer in everyone):
        # Functions of an earlier search belong to ranks that are no longer there.
        tuning = FitTuner(model, job, ranks)
        object.__setattr__(model, "_ringar_tuner", tuning)  # Keras' own would track it
    assert tuning is not None
    tuning.begin(steps)
    return None if tuning.is_done else tuning


def leave(model: keras.Model) -> Callable[[], None] | None:
    """End the epoch of `model` on this rank, before it joins those that go on.

    Returns:
        The function to call before each step that it joins; None if nothing is tuned.
    """
    tuning = of(model)
    if tuning is None:
        return None
    tuning.leave()
    return tuning.before_missing_step


def _obstacle(model: keras.Model, steps: int | None, meets: bool) -> str:
    """Return why `model` is not tuned; the same on all ranks."""
    if not meets or not all(e.period.in_every_step for e in share.exchanges_of(model)):
        return "it tunes the reduction of gradients, which these ranks do not reduce in every step"
    if not model.trainable_variables:
        return "the model has no weights yet; build it before `fit`"
    if steps is None:
        return "the steps of an epoch are not known; pass `steps_per_epoch` to `fit`"
    if steps < 2 * model.steps_per_execution:
        return "an epoch has one step, and no later step by which to measure it"
    return ""


def _job(model: keras.Model, ranks: ProcessSet) -> Job:
    chosen: dict[str, object] = {}
    for exchange in share.exchanges_of(model):
        chosen |= exchange.chosen
    if algorithm := os.environ.get(mpi.ALGORITHM_VARIABLE):
        chosen["algorithm"] = algorithm
    specs = tuple(Spec.of(variable) for variable in model.trainable_variables)
    return Job(ranks.size(), 1, specs, chosen)
