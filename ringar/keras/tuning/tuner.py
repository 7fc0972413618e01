"""Windows of steps, which all ranks measure together.

A window ends after the same step on all ranks, as each counts its own steps. The ranks then gather
their times. Rank 0 searches, reads and writes files; the others take its decision. Its errors
become those of all ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from statistics import median
from typing import Any

from ringar.collectives import allgather_object, broadcast_object
from ringar.errors import UnsupportedError
from ringar.job import log, place
from ringar.job.process_sets import ProcessSet
from ringar.keras.tuned import DEFAULTS, Settings
from ringar.keras.tuning import files
from ringar.keras.tuning.bayes import BayesianSampler
from ringar.keras.tuning.options import Options
from ringar.keras.tuning.search import TURNS, Choice, Sample, search
from ringar.keras.tuning.space import Job, Space

_UNMEASURED = 2
"""Steps after a change that do not count: the first one is traced, the next fills caches."""

_log = log.logger(__name__)


@dataclasses.dataclass(frozen=True)
class Decision:
    """Tell all ranks how the search goes on.

    Attributes:
        settings: those of the next steps.
        is_last: whether they stay.
        error: the error of the first rank, or "".
        lacks_library: whether the error is that the rank lacks a library.
    """

    settings: Settings
    is_last: bool = False
    error: str = ""
    lacks_library: bool = False


class Director:
    """Search on the first rank: turn measured windows into decisions.

    Args:
        job: the job that the settings are for.
        options: the options of Autotune.

    Raises:
        UnsupportedError: Optuna is missing.
        ValueError: a file cannot be read or written.
    """

    def __init__(self, job: Job, options: Options) -> None:
        self._options = options
        self._space = Space(job, options.compression)
        self._kind = files.Kind.of(job, "compression" in self._space.dimensions)
        self._log: files.Log | None = None
        self._samples: Generator[Sample, float, Choice] | None = None
        self._sample = Sample("search", DEFAULTS)
        self._measured, self._says_so = 0, False
        entry = self._stored_settings()
        if entry is not None or self._space.count == 1:
            self.first = Decision(entry or DEFAULTS, is_last=True)
            if entry is None:
                _log.info("Autotune: all settings make the same step; the defaults stay.")
            return
        sampler = BayesianSampler(self._space)
        self._samples = search(self._space, sampler, options.warmup, options.samples)
        if options.log is not None:
            try:
                self._log = files.Log(options.log, self._kind.model)
            except OSError as error:
                raise ValueError(f"expected a log that can be written: {error}") from error
        self._sample = next(self._samples)
        self.first = Decision(self._sample.settings)

    def _stored_settings(self) -> Settings | None:
        """Return the settings of this job in the file of settings, if it has any."""
        path = self._options.settings
        if path is None:
            return None
        entry = files.load(path, self._kind)
        if entry is not None and self._space.holds(entry):
            _log.info("Autotune: took %s from %s.", entry, path)
            return entry
        try:
            files.check_writable(path)
        except OSError as error:
            raise ValueError(f"expected a file of settings that can be written: {error}") from error
        if path.exists():
            _log.info("Autotune: %s has no settings for this job; they are searched.", path)
        return None

    def decide(self, seconds: float) -> Decision:
        """Take the seconds of a step of the last window, and return the next decision."""
        assert self._samples is not None
        self._measured += 1
        self._write(self._sample, seconds)
        try:
            self._sample = self._samples.send(seconds)
        except StopIteration as end:
            return self._end(end.value)
        return Decision(self._sample.settings)

    def end_training(self) -> None:
        """Say, once, if a training has ended before the search."""
        if self._says_so:
            return
        self._says_so = True
        most = self._options.warmup + min(self._options.samples, self._space.count) + 2 * TURNS
        _log.warning(
            "Autotune: the training has ended before the search, after %d of at most %d samples of "
            "%d steps, and nothing is chosen yet. The next `fit` of this model goes on with it. "
            "Train for more steps, or lower RINGAR_AUTOTUNE_STEPS_PER_SAMPLE or "
            "RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES.",
            self._measured, most, self._options.steps,
        )  # fmt: skip

    def _write(self, sample: Sample, seconds: float) -> None:
        if self._log is None:
            return
        try:
            self._log.write(sample, seconds)
        except OSError as error:  # no reason to end a training
            _log.warning("Autotune: cannot write the log any longer: %s", error)
            self._log = None

    def _end(self, choice: Choice) -> Decision:
        self._write(Sample("chosen", choice.settings), choice.seconds)
        if self._log is not None:
            self._log.close()
        if self._options.settings is not None:
            try:
                files.store(self._options.settings, self._kind, choice)
            except (OSError, ValueError) as error:  # no reason to end a training
                _log.warning("Autotune: cannot keep the settings: %s", error)
        _log.info(
            "Autotune: tried %d settings and keeps %s: %.4g s per step, %.4g s with the defaults.",
            choice.trials, choice.settings, choice.seconds, choice.default_seconds,
        )  # fmt: skip
        return Decision(choice.settings, is_last=True)


class Tuner:
    """Measure windows on a rank, and take the decisions of the first one. Collective.

    Args:
        job: the job that the settings are for; `hosts` is found out here.
        options: the options of Autotune.
        ranks: those that train together.
        clock: returns seconds.

    Attributes:
        settings: those of the next steps.
        is_done: whether they stay.
        measured: the windows that have ended.

    Raises:
        UnsupportedError: on every rank, if rank 0 lacks Optuna.
        ValueError: on every rank, if rank 0 cannot read or write a file.
    """

    def __init__(
        self, job: Job, options: Options, ranks: ProcessSet, clock: Callable[[], float]
    ) -> None:
        self._options, self._ranks, self._clock = options, ranks, clock
        hosts = place.hosts()
        self.job = dataclasses.replace(job, hosts=len({hosts[rank] for rank in ranks.ranks}))
        self._director: Director | None = None
        decision = Decision(DEFAULTS)
        if ranks.rank() == 0:
            try:
                self._director = Director(self.job, options)
                decision = self._director.first
            except (UnsupportedError, ValueError) as error:
                lacks = isinstance(error, UnsupportedError)
                decision = Decision(DEFAULTS, error=str(error), lacks_library=lacks)
        self.measured = 0
        self.begin_window()
        self._take(decision)

    def begin_window(self) -> None:
        """Begin a window anew, as all ranks do: some may have counted more steps than others."""
        self._times: list[float] = []
        self._skip = _UNMEASURED
        self._last: float | None = None

    def pause(self) -> None:
        """Measure nothing until the next step: the time until then is no part of a step."""
        self._last = None

    def end_training(self) -> None:
        """End a training; let the first rank say that the search has not ended."""
        if self._director is not None and not self.is_done:
            self._director.end_training()

    def step_begins(self, has_data: bool = True) -> bool:
        """Note that a step begins, on all ranks; return whether its settings have changed.

        The time between two calls is that of the step between them.

        Args:
            has_data: whether this rank takes the step. A rank without data counts steps as the
                others do, and lets no settings change.
        """
        now = self._clock()
        if self._last is not None:
            if self._skip > 0:
                self._skip -= 1
            else:
                self._times.append(now - self._last)
        self._last = now
        if len(self._times) < self._options.steps:
            return False
        changes = self._end_window(has_data)
        self._last = self._clock()
        return changes

    def _end_window(self, has_data: bool) -> bool:
        """Let rank 0 decide; return whether the settings change."""
        duration = median(self._times) if has_data else None
        self.measured += 1
        of_ranks = allgather_object(duration, **self._named("window"))
        self._times = []
        seconds = [duration for duration in of_ranks if duration is not None]
        if len(seconds) < len(of_ranks):  # not all ranks take this step
            return False
        decision, before = Decision(DEFAULTS), self.settings  # of rank 0 alone
        if self._director is not None:
            decision = self._director.decide(max(seconds))
        self._take(decision)
        if self.settings == before:
            return False
        self._skip = _UNMEASURED
        return True

    def _take(self, decision: Decision) -> None:
        root = self._ranks.ranks[0]
        decision = broadcast_object(decision, root, **self._named("decision"))
        if decision.error:
            kind = UnsupportedError if decision.lacks_library else ValueError
            raise kind(
                f"rank {self._ranks.rank()} | Autotune: rank {root} could not begin: "
                f"{decision.error}"
            )
        self.settings, self.is_done = decision.settings, decision.is_last

    def _named(self, label: str) -> dict[str, Any]:
        return {"name": f"autotune/{label}", "process_set": self._ranks}
