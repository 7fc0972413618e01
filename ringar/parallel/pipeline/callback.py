"""What keeps the ranks of a pipelined model together during `fit`."""

from __future__ import annotations

from typing import Any

import keras

from ringar import runtime
from ringar.collectives import allgather_object
from ringar.keras import checks
from ringar.keras.synchronize import broadcast_model, end_epoch
from ringar.parallel.grid import Grid


class Alignment(keras.callbacks.Callback):
    """What `ringar.callbacks.Distributed` does, for modules and their replicas.

    Replicas of a module get the weights and the optimizer state of the first one. Metrics, which
    are those of the last module on all ranks of a model group, are averaged over the groups. Ranks
    that would not do equally many steps are told so before they begin.

    Args:
        grid: of modules and replicas.

    Raises:
        ValueError: in `fit`, on every rank, if the ranks are to do different numbers of steps.
        MismatchError: in `fit`, on every rank, if replicas have drifted apart.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compare the numbers of steps; broadcast the weights to the replicas."""
        own = {name: (self.params or {}).get(name) for name in ("steps", "epochs")}
        ranks = allgather_object(own, name="start of training")
        for name in own:
            values = [mine[name] for mine in ranks]
            if len(set(values)) > 1:
                received = ", ".join(f"{v} (rank {rank})" for rank, v in enumerate(values))
                raise ValueError(
                    f"rank {runtime.rank()} | start of training: expected the same number of "
                    f"{name} on every rank; received {received}. Give the ranks of a model group "
                    "the same data, and all groups equally much (ringar.data.shard)."
                )
        if self.grid.data > 1:
            broadcast_model(self.model, self.grid.part, self.grid.data_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the metrics and agree whether to stop."""
        end_epoch(self.model, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Check that the replicas of this module have the same weights."""
        if self.grid.data > 1:
            checks.check_weights(self.model, self.grid.data_set)
