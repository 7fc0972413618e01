"""The backup of a training run on several ranks, in the place of Keras' `BackupAndRestore`.

Rank 0 writes the file that Keras writes, `latest.weights.h5`, with the state that Keras omits
(`training_state`), and `training_metadata.json` for a process without ringar. Only the file of
weights says where training goes on. It is renamed once, when it is complete, so that weights and
epoch belong together after any crash.

The state is restored at the point of the program at which it was captured: after the callbacks of a
batch, or after those of an epoch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from ringar.job import log
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import training_state
from ringar.keras.optimizer import build_exchange
from ringar.keras.synchronize import broadcast_model
from ringar.keras.whole_file import written_whole
from ringar.keras.zero.slot_files import on_first_rank_of

_log = log.logger(__name__)

Point = tuple[int, int]
"""An epoch, and the number of its batches that are done."""


@dataclass(frozen=True)
class Settings:
    """Hold the arguments of a `keras.callbacks.BackupAndRestore`."""

    folder: str
    save_freq: str | int
    double_checkpoint: bool
    delete_checkpoint: bool

    @classmethod
    def of(cls, callback: keras.callbacks.BackupAndRestore) -> Settings:
        """Return the arguments of `callback`."""
        return cls(
            os.fspath(callback.backup_dir),
            callback.save_freq,
            callback.double_checkpoint,
            callback.delete_checkpoint,
        )

    @property
    def weights(self) -> str:
        """The path of the backup."""
        return os.path.join(self.folder, "latest.weights.h5")

    @property
    def metadata(self) -> str:
        """The path of Keras' own description of it."""
        return os.path.join(self.folder, "training_metadata.json")


class Backup(keras.callbacks.Callback):
    """Back up the state of training, and restore it. On every rank, last in the list.

    Args:
        settings: those of the first rank, which writes.
        others: the callbacks whose state belongs to that of training.
        process_set: the ranks that train together.
        common_steps: the steps of an epoch that all ranks have, if some have more: after them a
            rank without data would not take part in a backup.
    """

    def __init__(
        self,
        settings: Settings,
        callbacks: list[keras.callbacks.Callback],
        process_set: ProcessSet | None,
        common_steps: int | None = None,
    ) -> None:
        super().__init__()
        self._common_steps = common_steps
        self.settings = settings
        self._callbacks = callbacks
        self._process_set = process_set
        self._epoch = self._batch = self._since = 0
        self._rows: int | None = None
        self._restored: dict[str, Any] | None = None
        #: Returns the rows of an epoch that are done after a number of batches, for data that know.
        self.rows_after: Callable[[int], int] | None = None

    def find(self) -> Point:
        """Restore the backup, if there is one, and return where training goes on. Collective."""
        state = self._look()
        self.restore()
        if state is None:
            return 0, 0
        if state["stopped"]:
            return int(self.params["epochs"]), 0
        if state.get("rows"):
            raise ValueError(
                f"rank {or_all(self._process_set).rank()} | backup: expected "
                "ringar.callbacks.Elastic() and its data, with which the backup in "
                f"{self.settings.folder!r} was made, received other data; use them again, or "
                "remove the backup"
            )
        # Other numbers of ranks have other global batches: count examples.
        ranks = state["ranks"] or or_all(self._process_set).size()
        return state["epoch"], state["batches"] * ranks // or_all(self._process_set).size()

    def find_rows(self) -> Point | None:
        """Return the epoch of the backup and its rows that are done; restore nothing. Collective.

        None: there is no backup.
        """
        state = self._look()
        if state is None:
            return None
        if state["stopped"]:
            return int(self.params["epochs"]), 0
        if state["batches"] and state.get("rows") is None:
            raise ValueError(
                f"rank {or_all(self._process_set).rank()} | backup: expected a backup made with "
                "ringar.callbacks.Elastic(), or at the end of an epoch, received one of other data "
                f"in {self.settings.folder!r}, after {state['batches']} batches; go on without "
                "Elastic, or remove the backup"
            )
        return state["epoch"], state.get("rows") or 0

    @property
    def ranks(self) -> int:
        """The number of ranks that made the backup; 0 if it does not say so."""
        return 0 if self._restored is None else int(self._restored["ranks"])

    def _look(self) -> dict[str, Any] | None:
        """Read the state of the backup; None if there is none."""
        if not self.model.built:
            raise ValueError(
                f"rank {or_all(self._process_set).rank()} | BackupAndRestore: expected a model "
                f"that is built before `fit`, received {self.model.name!r}, which its first batch "
                "builds; give it a keras.Input, or call it on a batch"
            )
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
            build_exchange(optimizer)
        self._restored = self._on_first_rank(self._read, "read")
        return self._restored

    def restore(self) -> None:
        """Give the model, its optimizer and the callbacks the state that `find` has read."""
        if self._restored is None:
            return
        ranks = or_all(self._process_set)
        self._on_first_rank(lambda: self._load() and None, "read")
        broadcast_model(self.model, ranks.ranks[0], self._process_set)
        training_state.restore(self.model, self._restored["own"], self._process_set)
        training_state.set_counters(self._callbacks, self._restored["callbacks"])

    def save(self) -> None:
        """Write the state of training as it is now. Collective."""
        self._since = 0
        within_epoch = bool(self._batch or self._rows)
        state = {
            "epoch": self._epoch,
            "batches": self._batch,
            "rows": self._rows,
            "ranks": or_all(self._process_set).size(),
            "stopped": bool(self.model.stop_training),
            "own": training_state.capture(self.model, within_epoch, self._process_set),
            "callbacks": training_state.counters(self._callbacks),
        }
        self._on_first_rank(lambda: self._write(state), "write")

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Note the epoch."""
        self._epoch = epoch
        self._count(0)

    def _count(self, batches: int) -> None:
        self._batch = batches
        self._rows = None if self.rows_after is None else self.rows_after(batches)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Save after every `save_freq` batches."""
        since = self._since + batch + 1 - self._batch
        self._count(batch + 1)
        if self._common_steps is not None and batch >= self._common_steps:
            return  # other ranks do not count this batch
        self._since, frequency = since, self.settings.save_freq
        if not isinstance(frequency, str) and since >= frequency > 0:
            self.save()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Save, with `save_freq="epoch"`."""
        self._epoch, self._batch, self._rows = epoch + 1, 0, None
        if self.settings.save_freq == "epoch":
            self.save()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Delete the backup, unless it is to stay."""
        if self.settings.delete_checkpoint:
            self._on_first_rank(
                lambda: shutil.rmtree(self.settings.folder, ignore_errors=True), "delete"
            )

    def go_on_at(self, epoch: int, batches: int) -> None:
        """Count from a restored point."""
        self._epoch, self._batch, self._since = epoch, batches, 0

    # On the first rank

    def _write(self, state: dict[str, Any]) -> None:
        os.makedirs(self.settings.folder, exist_ok=True)
        weights, metadata = self.settings.weights, self.settings.metadata
        if self.settings.double_checkpoint:
            for path in (weights, metadata):
                if os.path.exists(path):
                    with written_whole(f"{path}.bkp") as copy:
                        shutil.copyfile(path, copy)
        with written_whole(weights) as path:
            self.model.save_weights(path, overwrite=True)
            training_state.write(path, state)
        with written_whole(metadata) as path, open(path, "w") as file:
            json.dump({"epoch": state["epoch"], "batch": state["batches"]}, file)

    def _read(self) -> dict[str, Any] | None:
        """Load the backup, or the one before it; return its state, or None."""
        if not os.path.exists(self.settings.weights):
            return None
        try:
            return self._load()
        except OSError:
            before = f"{self.settings.weights}.bkp"
            if not os.path.exists(before):
                raise
            shutil.copyfile(before, self.settings.weights)
            return self._load()

    def _load(self) -> dict[str, Any]:
        self.model.load_weights(self.settings.weights)
        state = training_state.read(self.settings.weights)
        if state is None:  # written by Keras without ringar
            with open(self.settings.metadata) as file:
                saved = json.load(file)
            batches = saved["batch"] + 1 if saved["batch"] else 0
            layout = {"ranks": 0, "stopped": False, "own": [], "callbacks": []}
            state = {"epoch": saved["epoch"], "batches": batches, **layout}
        return state

    def _on_first_rank(self, action: Callable[[], Any], verb: str) -> Any:
        deed = f"to {verb} {self.settings.weights!r}"
        return on_first_rank_of(self.model, action, "BackupAndRestore", deed, self._process_set)


def tell(epoch: int, batches: int, redraws: bool) -> None:
    """Log where training goes on, and what comes first."""
    start = "the batches before it are drawn again, without training" if redraws else "at once"
    _log.info("resuming at epoch %d, batch %d: %s", epoch, batches, start)
