"""Load a model and make it distributed again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import keras
import numpy as np

from ringar.collectives import broadcast
from ringar.collectives.agree import first
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras.optimizer import DistributedOptimizer
from ringar.keras.share import optimizers_of
from ringar.sharding.slots import inner_optimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ringar.collectives.compression import Compressor
    from ringar.collectives.ops import ReduceOp
    from ringar.collectives.powersgd import PowerSGD
    from ringar.keras.sharded import Stage
    from ringar.keras.zero.offload import Kind
    from ringar.sharding.grid import Grid
    from ringar.sharding.slice_ranks import ShardRanks


class Distribution(TypedDict, total=False):
    """Say how a loaded model's optimizer is distributed, as `ringar.DistributedOptimizer` does."""

    op: ReduceOp
    compression: type[Compressor] | PowerSGD
    algorithm: str | None
    grid: Grid | None
    bucket_bytes: int | None
    prescale_factor: float
    postscale_factor: float
    sparse_as_dense: bool
    shard: Stage | None
    shard_ranks: ShardRanks | None
    offload: Kind | None
    offload_folder: str | os.PathLike[str] | None


def load_model(
    path: str | os.PathLike[str],
    custom_objects: Mapping[str, object] | None = None,
    compile: bool = True,  # Keras' name
    safe_mode: bool = True,
    *,
    process_set: ProcessSet | None = None,
    **distributed: Unpack[Distribution],
) -> keras.Model:
    """Load a Keras model on all ranks, with an optimizer that is distributed.

    The first rank reads the file, and the others receive it: they need not see its disk. The
    optimizer goes on with the state that it was saved with. The file may come from any number of
    ranks, or from a process without ringar.

    Args:
        path: a `.keras` or `.h5` file that `model.save` or ModelCheckpoint has written.
        custom_objects: as for `keras.models.load_model`.
        compile: compile the model as it was compiled when it was saved, if it was.
        safe_mode: as for `keras.models.load_model`.
        process_set: the ranks that load, and then train together; by default all.
        **distributed: the other arguments of `ringar.DistributedOptimizer`.

    Returns:
        The model, on every rank.

    Raises:
        OSError: on every rank, if the file cannot be read.
        ValueError: the file is no model, or an argument is out of range.
    """
    model = _load_plain(path, custom_objects, compile, safe_mode, process_set)
    for optimizer in optimizers_of(model):
        # In a LossScaleOptimizer the inner one is distributed, as `compile` leaves it.
        DistributedOptimizer(inner_optimizer(optimizer), process_set=process_set, **distributed)
    return model


def _load_plain(
    path: str | os.PathLike[str],
    custom_objects: Mapping[str, object] | None,
    compile: bool,
    safe_mode: bool,
    process_set: ProcessSet | None,
) -> keras.Model:
    """Load a Keras model on all ranks, as `load_model` does, and leave its optimizers plain."""
    path = os.fspath(path)
    size = first(
        lambda: os.path.getsize(path),
        caller="ringar.load_model",
        deed=f"to read {path!r}",
        process_set=process_set,
    )
    ranks = or_all(process_set)
    with tempfile.TemporaryDirectory(prefix="ringar-model-") as folder:
        file = path
        if ranks.size() > 1:
            data = np.fromfile(path, np.uint8) if ranks.rank() == 0 else np.empty(size, np.uint8)
            data = broadcast(data, ranks.ranks[0], name="load_model", process_set=process_set)
            if ranks.rank() != 0:
                file = os.path.join(folder, Path(path).name)
                np.asarray(data).tofile(file)
        return keras.models.load_model(file, dict(custom_objects or {}), compile, safe_mode)
