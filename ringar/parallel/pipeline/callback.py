"""The callbacks that keep the ranks of a pipelined model together during `fit`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from ringar.collectives import allgather_object
from ringar.collectives.agree import same
from ringar.collectives.call import Call
from ringar.errors import MismatchError
from ringar.job import place
from ringar.keras import checks, description, moving_statistics, share
from ringar.keras.callbacks import Distributed
from ringar.keras.save_on_signal import SaveOnSignal
from ringar.keras.synchronize import average_logs, broadcast_model
from ringar.sharding.grid import Grid

_RATES = Call("allgather", name="learning rates")


def bind_arguments(
    method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments by name, without a progress bar on ranks other than 0."""
    signature = inspect.signature(method)
    arguments = signature.bind(*args, **kwargs).arguments
    arguments |= arguments.pop("kwargs", {})
    is_silent = place.rank() > 0 and "verbose" in signature.parameters
    return {**arguments, "verbose": 0} if is_silent else arguments


def add_alignment(callbacks: Any, grid: Grid) -> list[Any]:
    """Return the callbacks of `fit`, with `Alignment` and `Agreement` added.

    Args:
        callbacks: the user's callbacks, one or several. `Alignment` replaces the first
            `ringar.callbacks.Distributed`, or comes first.
        grid: the grid of modules and replicas.

    Raises:
        ValueError: a callback does not support modules.
    """
    flat = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    flat = [callback for callback in flat if callback is not None]
    for callback in flat:
        if isinstance(callback, keras.callbacks.BackupAndRestore | SaveOnSignal):
            raise ValueError(
                f"rank {place.rank()} | `callbacks` must not have {type(callback).__name__}, which "
                "knows one module only. Use ModelCheckpoint on all ranks, and "
                "Pipelined(keras.models.load_model(path))."
            )
    saving = [c for c in flat if isinstance(c, keras.callbacks.ModelCheckpoint)]
    for checkpoint in saving:  # Keras would make the folder on all ranks at once
        os.makedirs(os.path.dirname(str(checkpoint.filepath)) or ".", exist_ok=True)
    alignment = Alignment(grid, [f"{type(c).__name__} {c.save_freq}" for c in saving])
    indices = [i for i, callback in enumerate(flat) if isinstance(callback, Distributed)]
    flat.insert(indices[0] if indices else 0, alignment)
    return [*(c for c in flat if not isinstance(c, Distributed)), Agreement(grid)]


class Alignment(keras.callbacks.Callback):
    """Keep modules and their replicas together, as `ringar.callbacks.Distributed` does ranks.

    Replicas of a module get the weights and the optimizer state of the first replica, and combine
    their moving statistics before they evaluate and at the end of an epoch. Metrics, which are
    those of the last module on all ranks of a model group, are averaged over the groups. The ranks
    compare their numbers of steps and their checkpoints before training begins.

    Args:
        grid: the grid of modules and replicas.
        saving: the callbacks that save the model, as text; saving takes all ranks.

    Raises:
        ValueError: in `fit`, on every rank, if numbers of steps or checkpoints differ.
        MismatchError: in `fit`, on every rank, if the weights of replicas differ.
    """

    def __init__(self, grid: Grid, saving: list[str]) -> None:
        super().__init__()
        self.grid, self.saving = grid, saving

    def set_model(self, model: keras.Model) -> None:
        """Look after the weights of `model`, whose training step is built next."""
        super().set_model(model)
        share.watch(model)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Compare steps and checkpoints; broadcast the weights to the replicas."""
        described = description.model(self.model)
        settings = ("exchange", "optimizer", "loss", "loss_weights")  # weights are this module's
        same(
            {
                "number of steps": (self.params or {}).get("steps"),
                "number of epochs": (self.params or {}).get("epochs"),
                "checkpoints": self.saving,
                **{name: described[name] for name in settings},
            },
            caller="ringar.parallel.Pipelined",
            remedy="Give the ranks of a model group the same data, and all groups equally much "
            "(ringar.data.shard); compile alike on all ranks; save on all ranks, rank 0 writes.",
        )
        if self.grid.data > 1:
            broadcast_model(self.model, self.grid.part, self.grid.data_set)

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Combine the moving statistics."""
        moving_statistics.combine(self.model, self.grid.data_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Combine the moving statistics, and average the metrics."""
        moving_statistics.combine(self.model, self.grid.data_set)
        average_logs(logs)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Check that the replicas of this module have the same weights."""
        if self.grid.data > 1:
            checks.check_weights(self.model, self.grid.data_set)


class Agreement(keras.callbacks.Callback):
    """Stop all ranks if one requests it, and compare rates; the last callback of an epoch.

    Args:
        grid: the grid of modules and replicas.

    Raises:
        MismatchError: in `fit`, on every rank, if the learning rates of a module's replicas differ.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Agree with all ranks whether to stop; compare the learning rates of replicas."""
        self.model.agree_to_stop()
        if self.grid.data > 1:
            self._compare_rates()

    def _compare_rates(self) -> None:
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        ranks = allgather_object((self.grid.part, rate), name=_RATES.name)
        if len(set(ranks)) > len({part for part, _ in ranks}):
            raise MismatchError(
                _RATES.refusal(
                    "the same learning rate on all replicas of a module",
                    ", ".join(f"{rate:g} (rank {rank})" for rank, (_, rate) in enumerate(ranks)),
                    "Give them the same callbacks; one that decides by metrics must come after "
                    "ringar.callbacks.Distributed(), if that is in the list.",
                )
            )
