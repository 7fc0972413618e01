"""Keras' list of callbacks, when `ringar.callbacks.Distributed` is in it.

A callback does not see the others of its `fit`, but the list does. Keras makes a list for each
`fit` and hands it the model; ringar overrides that one method, once, for all lists. A list that has
a `Distributed` then becomes one of ringar's (its class is replaced by a subclass, as that of a
distributed optimizer), and the order in which the user wrote the callbacks does not matter:

- `Distributed` comes before Keras' callbacks that read metrics, which see those of all ranks then.
- Callbacks that write (`callback_traits`) stay on the first rank only. Files appear whole.
- `last_callback.LastCallback` comes after all callbacks: if one rank stops, all ranks stop.
- `backup.Backup` takes the place of BackupAndRestore, on all ranks, after all others: the state
  that it saves at the end of an epoch includes what the others did there.
- A callback that runs `fit` itself, such as `Elastic`, decides whether a backup is restored.
- While `redraw.Redraw` draws the batches before a resumed one, no callback is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from ringar import hooks
from ringar.collectives import allgather_object
from ringar.errors import MismatchError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import callback_traits, training_state
from ringar.keras.backup import Backup, Settings, tell
from ringar.keras.fitting import Coordinated
from ringar.keras.last_callback import LastCallback
from ringar.keras.redraw import Redraw
from ringar.keras.save_on_signal import SaveOnSignal
from ringar.keras.whole_file import SavedWhole
from ringar.keras.zero.slot_files import exchange_of
from ringar.sharding.cut import cut_of

_K = keras.callbacks


class DistributedListMixin:
    """Call callbacks as training on several ranks needs it."""

    callbacks: list[keras.callbacks.Callback]
    model: keras.Model
    params: dict[str, Any]
    _distributed: Any
    _all_callbacks: list[keras.callbacks.Callback]
    _backup: Backup | None
    _redraw: Redraw | None
    _savers: list[SaveOnSignal]
    _coordinated: list[Coordinated]
    _common_steps: int | None  # of an epoch, if some ranks have more

    def arrange(self, model: keras.Model, distributed: Any) -> None:
        """Order the callbacks, and drop those that are for the first rank only.

        Args:
            model: the model of the list.
            distributed: the `Distributed` of the list, which has a `process_set` and `replay_data`.
        """
        self._distributed, self._backup, self._redraw = distributed, None, None
        self._all_callbacks = callbacks = [c for c in self.callbacks if c is not distributed]
        readers = (i for i, c in enumerate(callbacks) if callback_traits.reads_metrics(c))
        callbacks.insert(
            min(self.callbacks.index(distributed), next(readers, len(callbacks))), distributed
        )
        is_first = or_all(self._process_set).rank() == 0
        backups = [c for c in callbacks if isinstance(c, _K.BackupAndRestore)]
        savers = [c for c in callbacks if callback_traits.saves_models(c) and c not in backups]
        _check_savers(model, savers)
        checkpoints = (
            _checkpoints(callbacks, savers, is_first) if exchange_of(model) is not None else []
        )
        self.callbacks = [
            c
            for c in callbacks
            if c not in backups and (is_first or c in checkpoints or not callback_traits.writes(c))
        ]

    def save_whole(self) -> None:
        """Let each ModelCheckpoint save through `SavedWhole`, after the list has the model."""
        for callback in self.callbacks:
            if isinstance(callback, _K.ModelCheckpoint):
                callback.set_model(SavedWhole(self.model))

    @property
    def _process_set(self) -> ProcessSet | None:
        process_set: ProcessSet | None = self._distributed.process_set
        return process_set

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Restore the backup, after all callbacks have begun."""
        self._add_backup()
        self._savers = [c for c in self.callbacks if isinstance(c, SaveOnSignal)]
        for saver in self._savers:
            saver.join(self._backup, self._process_set)
        super().on_train_begin(logs)  # type: ignore[misc]  # a mixin
        self._coordinated = [c for c in self.callbacks if isinstance(c, Coordinated)]
        for callback in self._coordinated:
            steps = self._common_steps or self.params.get("steps") or 0
            callback.begin_training(self._all_callbacks, self._process_set, steps)
        if self._backup is None or any(c.resumes(self._backup) for c in self._coordinated):
            return
        epoch, batches = self._backup.find()
        if epoch >= self.params["epochs"]:
            self.model._initial_epoch = epoch  # Keras' own way: there is nothing left to do
            return
        if not self._distributed.replay_data:
            self.model._initial_epoch = epoch
        if (epoch, batches) != (0, 0):
            tell(epoch, batches, self._distributed.replay_data)
            self._redraw = Redraw(self.model, epoch, batches)
            self._redraw.begin()

    def _add_backup(self) -> None:
        """Add the backup of the first rank, on all ranks; find the steps that all ranks have."""
        if not self._distributed.meets:
            self._refuse_backups()
            self._common_steps = None
            return
        settings = [
            Settings.of(c) for c in self._all_callbacks if isinstance(c, _K.BackupAndRestore)
        ]
        ranks = [(settings, self.params.get("steps"))]
        if or_all(self._process_set).size() > 1:
            where: dict[str, Any] = {"name": "callbacks", "process_set": self._process_set}
            ranks = allgather_object(ranks[0], **where)
        backups, steps = zip(*ranks, strict=True)
        counts = [number for number in steps if number is not None]
        self._common_steps = min(counts, default=None) if len(set(steps)) > 1 else None
        self._append(LastCallback(self._process_set, self._distributed.check))
        if not backups[0]:
            if any(backups):
                raise MismatchError(
                    f"rank {or_all(self._process_set).rank()} | callbacks: expected "
                    "BackupAndRestore on rank 0, which writes, received it on others only; give "
                    "all ranks the same callbacks"
                )
            return
        self._backup = Backup(
            backups[0][0], self._all_callbacks, self._process_set, self._common_steps
        )
        self._append(self._backup)
        self._async_train = False  # a backup in another thread would mix up the collectives

    def _append(self, callback: keras.callbacks.Callback) -> None:
        callback.set_model(self.model)
        callback.set_params(self.params)
        self.callbacks.append(callback)

    def _refuse_backups(self) -> None:
        for callback in self._all_callbacks:
            if isinstance(callback, _K.BackupAndRestore | SaveOnSignal | Coordinated):
                raise ValueError(
                    f"rank {place.rank()} | {type(callback).__name__}: expected an optimizer whose "
                    "ranks meet, received one of a ringar.ParameterServer, whose workers are at no "
                    "common point. Give the server a `directory`: its shards are saved there, and "
                    "a job that is started again goes on with them."
                )

    def _go_on(self) -> None:
        """End the redraw, at the point at which the backup was made."""
        assert self._redraw is not None
        assert self._backup is not None
        self._redraw.end()
        self._backup.restore()
        self._backup.go_on_at(self._redraw.epoch, self._redraw.batches)
        self._redraw = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Call the callbacks, unless the epoch is drawn only."""
        if self._redraw is not None:
            if self._redraw.on_epoch_begin(epoch):
                self._go_on()
            elif epoch < self._redraw.epoch:
                return
        super().on_epoch_begin(epoch, logs)  # type: ignore[misc]
        for callback in self._coordinated:
            callback.after_epoch_begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Call the callbacks, unless the batch is drawn only; stop if a signal says so."""
        if self._common_steps is None or batch < self._common_steps:
            for saver in self._savers:
                saver.stop_if_told(save=self._redraw is None)
            for callback in self._coordinated:
                callback.before_batch(batch)
            if self._distributed.tuner is not None and self._redraw is None:
                self._tune(batch)
        if self._redraw is None:
            super().on_train_batch_begin(batch, logs)  # type: ignore[misc]

    def _tune(self, batch: int) -> None:
        self._distributed.tuner.before_batch(batch)
        if self._distributed.tuner.is_done:
            self._distributed.tuner = None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Call the callbacks, unless the batch is drawn only."""
        if self._redraw is None:
            super().on_train_batch_end(batch, logs)  # type: ignore[misc]
        elif self._redraw.on_train_batch_end(batch):
            self._go_on()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Call the callbacks, unless the epoch is drawn only."""
        if self._redraw is not None:
            if not self._redraw.on_epoch_end(epoch):
                return
            self._go_on()
        super().on_epoch_end(epoch, logs)  # type: ignore[misc]
        for saver in self._savers:
            saver.stop_if_told(now=True)
        for callback in self._coordinated:
            callback.after_epoch_end(epoch)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Wait until the first rank has written its files; take the state of its callbacks."""
        super().on_train_end(logs)  # type: ignore[misc]
        self.model._initial_epoch = None  # of this `fit` only
        if self._distributed.meets:
            training_state.share_writers(self._all_callbacks, self._process_set, "end of training")


def _check_savers(model: keras.Model, savers: list[keras.callbacks.Callback]) -> None:
    """Check that the first rank alone can save `model` as the callbacks `savers` do."""
    for saver in savers:
        name = f"rank {place.rank()} | {type(saver).__name__}: expected a model that "
        if _takes_all_ranks(model, saver):
            raise ValueError(
                f"{name}the first rank can save alone, received one with split layers or a "
                "SparseNet; save ringar.parallel.merge(model), or a SparseNet as it is, after "
                "`fit`, and use BackupAndRestore during it"
            )
        if exchange_of(model) is not None and not isinstance(saver, _K.ModelCheckpoint):
            raise ValueError(
                f"{name}each rank has whole, received one with a sharded optimizer; use "
                "ModelCheckpoint or BackupAndRestore, which gather it"
            )


def _takes_all_ranks(model: keras.Model, saver: Any) -> bool:
    """Return whether the first rank cannot write the files of a callback alone."""
    if any(cut_of(weight) is not None for weight in (model.weights if model.built else ())):
        return True
    layers = () if saver.save_weights_only else model._flatten_layers()
    return any(getattr(layer, "saves_on_all_ranks", False) for layer in layers)


def _checkpoints(
    callbacks: list[keras.callbacks.Callback], savers: list[Any], is_first: bool
) -> list[keras.callbacks.Callback]:
    """Return the callbacks that save a model whose optimizer is sharded: on all ranks together."""
    for callback in savers:
        if callback.save_freq != "epoch":
            raise ValueError(
                f'rank {place.rank()} | ModelCheckpoint: expected save_freq="epoch" with a sharded '
                "optimizer, which all ranks save together, received "
                f"save_freq={callback.save_freq}; use BackupAndRestore for batches"
            )
        if not is_first:
            callback.verbose = 0
    for callback in callbacks:
        if isinstance(callback, getattr(_K, "SwapEMAWeights", ())):
            raise ValueError(
                f"rank {place.rank()} | SwapEMAWeights: expected an optimizer that has whole "
                "averages, received a sharded one; evaluate after `fit`, which leaves the averages "
                "in the model"
            )
    return savers


def arranging(original: Callable[..., None]) -> Callable[..., None]:
    """Make every list with a `Distributed` one of ringar's (`ringar.hooks`)."""

    def set_model(self: Any, model: keras.Model | None) -> None:
        distributed = next((c for c in self.callbacks if hasattr(c, "take_ranks")), None)
        if model and distributed is not None and not isinstance(self, DistributedListMixin):
            distributed.take_ranks(model)
            self.__class__ = hooks.derived(type(self), DistributedListMixin, "Distributed")
            self.arrange(model, distributed)
        original(self, model)
        if model and isinstance(self, DistributedListMixin):
            self.save_whole()

    return set_model
