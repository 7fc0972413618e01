"""Save when the job is told to stop: SIGTERM of SLURM, Kubernetes or `ringarrun`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np

from ringar.collectives import Max, allreduce
from ringar.job import log
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import keras_2
from ringar.keras.backup import Backup
from ringar.keras.whole_file import SavedWhole
from ringar.keras.zero.slot_files import on_first_rank_of

_log = log.logger(__name__)
_SAME = 1.0  # seconds within which a repeated signal counts as one


class SaveOnSignal(keras_2.Callback):
    """Save the training and end the job when any rank has received a signal.

    All ranks stop after the same batch. Rank 0 saves: the backup of a
    `keras.callbacks.BackupAndRestore` in the same list, with which a job that is started again goes
    on at that batch, and the model at `path`. Then `fit` raises `SystemExit` on every rank, with
    exit code 128 + the signal's number (143 for SIGTERM).

    `ringarrun` forwards SIGTERM to all ranks, and leaves them `--kill-grace` seconds. It forwards
    SIGUSR1 and SIGUSR2 to ranks that wait for them. A second signal, a second later or more, has
    its usual effect.

    Args:
        path: where to save the model: a file that ends in `.weights.h5`, `.keras` or `.h5`. None:
            nowhere, the backup is enough.
        signals: the signals to wait for.
        every: the number of batches between two exchanges, in which the ranks learn of a signal on
            one of them. An exchange costs a small allreduce.

    Raises:
        SystemExit: in `fit`, on every rank, after a signal.
        ValueError: in `fit`, without `ringar.callbacks.Distributed()` in the list, with neither
            BackupAndRestore nor `path`, or outside the main thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        signals: Sequence[int] = (signal.SIGTERM,),
        every: int = 1,
    ) -> None:
        super().__init__()
        self.path = None if path is None else os.fspath(path)
        self.signals = tuple(signals)
        self.every = every
        self._received = self._calls = 0
        self._received_at = 0.0
        self._before: dict[int, Any] = {}
        self._backup: Backup | None = None
        self._process_set: ProcessSet | None = None
        self._in_list = False

    def join(self, backup: Backup | None, process_set: ProcessSet | None) -> None:
        """Take the backup and the ranks of the list that will call `stop_if_told`."""
        self._backup, self._process_set, self._in_list = backup, process_set, True

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Wait for the signals from now on."""
        rank = or_all(self._process_set).rank()
        where = f"rank {rank} | SaveOnSignal: expected"
        if not self._in_list:
            raise ValueError(f"{where} ringar.callbacks.Distributed() in the list, received none")
        if self._backup is None and self.path is None:
            raise ValueError(
                f"{where} a path, or keras.callbacks.BackupAndRestore in the list, received neither"
            )
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                f"{where} `fit` in the main thread, which alone receives signals, received another"
            )
        self._received = self._calls = 0
        self._before = {number: signal.signal(number, self._note) for number in self.signals}

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Give the signals their former effect."""
        self._let_go()

    def stop_if_told(self, save: bool = True, now: bool = False) -> None:
        """Save and raise `SystemExit` if any rank has received a signal. Collective.

        Args:
            save: whether there is something new to save.
            now: exchange now, and not only in every `every`-th call.
        """
        self._calls += 1
        if not now and self._calls % self.every:
            return
        number = self._received
        if or_all(self._process_set).size() > 1:
            numbers = np.array([number], np.int32)
            maximum = allreduce(numbers, op=Max, name="signal", process_set=self._process_set)
            number = int(maximum[0])
        if not number:
            return
        if save and self._backup is not None:
            self._backup.save()
        if save and self.path is not None:
            deed = f"to write {self.path!r}"
            on_first_rank_of(self.model, self._save, "SaveOnSignal", deed, self._process_set)
        self._let_go()
        if or_all(self._process_set).rank() == 0:
            _log.warning(
                "%s: %s; the job ends",
                signal.Signals(number).name,
                "saved" if save else "there was nothing new to save",
            )
        raise SystemExit(128 + number)

    def _save(self) -> None:
        assert self.path is not None
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        model = SavedWhole(self.model)
        if self.path.endswith(".weights.h5"):
            model.save_weights(self.path, overwrite=True)
        else:
            model.save(self.path, overwrite=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # systemd and batch systems signal all processes, and ringarrun passes the signal on, too.
        if number == self._received and time.monotonic() < self._received_at + _SAME:
            return
        if self._received:
            self._let_go()
            os.kill(os.getpid(), number)
        self._received, self._received_at = number, time.monotonic()

    def _let_go(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
