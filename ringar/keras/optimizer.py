"""`DistributedOptimizer`: an optimizer of Keras 3 that reduces its gradients over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from ringar import hooks
from ringar.collectives import Average
from ringar.collectives.compression import Compression, Compressor
from ringar.collectives.powersgd import PowerSGD
from ringar.errors import NotInitializedError
from ringar.job import place
from ringar.keras import keras_2
from ringar.keras.apply import DistributedMixin, make_distributed
from ringar.keras.exchange import Exchange, exchange_of
from ringar.keras.grid_reduction import reducing
from ringar.keras.reduction import Reduction
from ringar.keras.sharded import STAGES, Stage, check, check_arguments, sharding
from ringar.keras.zero import offload as offloads
from ringar.sharding import slots
from ringar.sharding.slice_ranks import Slicing
from ringar.sharding.slots import inner_optimizer, with_nested

if TYPE_CHECKING:
    import os

    from ringar.collectives.ops import ReduceOp
    from ringar.job.process_sets import ProcessSet
    from ringar.sharding.grid import Grid
    from ringar.sharding.slice_ranks import ShardRanks


def DistributedOptimizer(  # Horovod's name, for a function that returns an object
    optimizer: str | keras.optimizers.Optimizer,
    *,
    op: ReduceOp = Average,
    compression: type[Compressor] | PowerSGD = Compression.none,
    algorithm: str | None = None,
    process_set: ProcessSet | None = None,
    grid: Grid | None = None,
    bucket_bytes: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    sparse_as_dense: bool = False,
    shard: Stage | None = None,
    shard_ranks: ShardRanks | None = None,
    offload: offloads.Kind | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
) -> keras.optimizers.Optimizer:
    """Make `optimizer` reduce its gradients over the ranks before it applies them.

    Compile the model after this call, not before: a training step that was traced earlier stays as
    it was.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, built or not, or the name of one. The object
            itself becomes distributed and keeps its state.
        op: `ringar.Average` or `ringar.Sum`. On a grid both count each model group once.
        compression: the form in which gradients are sent. `ringar.Compression.none`: unchanged.
            `.fp16` or `.bf16`: float32 gradients in that dtype between hosts, unchanged inside a
            host. `.powersgd(rank=2)`: large matrices as two factors of low rank, with error
            feedback (`ringar.collectives.powersgd`); this object holds the state, which is not
            saved. One rank alone compresses nothing.
        algorithm: the algorithm of allreduces between hosts, as for `ringar.allreduce`.
        process_set: the ranks that train together; by default all.
        grid: a `ringar.parallel.Grid`, for a model with split layers: variables that are cut are
            reduced over the ranks that have the same part, all others over all ranks.
        bucket_bytes: the largest size of a bucket of gradients, which one collective reduces. By
            default 8 MiB; between hosts up to 64 MiB where latencies would take a large part of the
            time, as on many hosts. A larger gradient has a bucket of its own.
        prescale_factor: multiplies gradients before the reduction.
        postscale_factor: multiplies gradients after the reduction.
        sparse_as_dense: reduce the `tf.IndexedSlices` of an Embedding as dense gradients instead of
            gathering the slices of all ranks. This is faster where most rows are used, and always
            done in steps that XLA compiles for batches of unknown size. Results are the same: the
            optimizer gets one slice per row, the sum over the batch and the ranks. (A plain
            optimizer of Keras treats each slice by itself: Adam, for example, adds their squares.)
        shard: "optimizer" or "gradients": each rank keeps the optimizer's slots for its slice of
            every variable only, and gets that slice of the reduced gradients (ZeRO,
            docs/sharded.md). "weights": it keeps its slice of the weights only, too, and gathers
            those of a layer while it is called; all ranks then evaluate together. With `shard` all
            ranks call `model.save` and `save_weights`, and the first one writes; files hold whole
            slots and weights. On a grid, a variable that is cut over the parts is sliced among the
            ranks that have the same part; not with "weights".
        shard_ranks: "host", with `shard`: slices are those of the ranks of one host, and other
            hosts hold the same. Then the slots take more memory, and only slices of gradients
            travel between hosts. Collective: all ranks of the job call it, each for its own
            `process_set`; all hosts have equally many ranks of a set.
        offload: with `shard`, where a rank's slots are. "memory": in the memory of the host, while
            the model is on a GPU. "disk": in a file, from which a step reads the slots variable by
            variable. Not in steps that XLA compiles for another device, and not with "weights".
        offload_folder: the folder of that file, on a disk; by default RINGAR_OFFLOAD_FOLDER, or
            that of temporary files. The file has no name, and vanishes with the process.

    Returns:
        `optimizer`, whose class is now `Distributed<class>`, a subclass of its former class. Copies
        by `copy`, and by its `from_config`, are distributed, too. Files, pickles and configs of a
        model hold the plain optimizer, so that they load without ringar.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `optimizer` is distributed already, or an argument is out of range.
    """
    reduction = Reduction(
        op,
        compression,
        algorithm,
        process_set,
        bucket_bytes,
        prescale_factor,
        postscale_factor,
        sparse_as_dense,
    )
    if shard is not None:
        slots_elsewhere = offloads.offload_of(offload, offload_folder)
        return _sharded(optimizer, shard, reduction, grid, shard_ranks, slots_elsewhere)
    arguments = {"shard_ranks": shard_ranks, "offload": offload, "offload_folder": offload_folder}
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(
                f"`{name}` needs `shard`. Received: {name}={value!r}, shard=None. Pass "
                'shard="optimizer", too; on one rank it changes nothing else.'
            )
    return distribute(optimizer, reducing(reduction, grid), "ringar.DistributedOptimizer")


def _sharded(
    optimizer: str | keras.optimizers.Optimizer,
    stage: Stage,
    reduction: Reduction,
    grid: Grid | None,
    shard_ranks: ShardRanks | None,
    offload: offloads.Offload | None,
) -> keras.optimizers.Optimizer:
    if stage not in STAGES:
        raise ValueError(
            '`shard` must be None, "optimizer", "gradients" or "weights". '
            f"Received: shard={stage!r}"
        )
    optimizer = keras_2.optimizer_of(optimizer, "DistributedOptimizer")
    check(optimizer, reduction)
    # In a LossScaleOptimizer the inner one is distributed, as `compile` leaves it.
    inner = inner_optimizer(optimizer)
    check_arguments(stage, grid, shard_ranks, offload)
    slicing = Slicing(reduction.process_set, grid, shard_ranks)
    exchange = sharding(stage, reduction, slicing, offload)
    distribute(inner, exchange, "ringar.DistributedOptimizer")
    hooks.install("files of sharded models")
    if inner.built:
        make = None if offload is None else offload.slot
        slots.replace(inner, exchange.slices.parts(inner._trainable_variables), make)
    return optimizer


def distribute(
    optimizer: str | keras.optimizers.Optimizer, exchange: Exchange, function: str
) -> keras.optimizers.Optimizer:
    """Give `optimizer` an exchange, and return it.

    Args:
        optimizer: an optimizer of Keras that is not distributed, or the name of one.
        exchange: what its ranks exchange.
        function: the function that the user has called, for errors.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"{function} needs Keras' TensorFlow backend: set the environment "
            f"variable KERAS_BACKEND=tensorflow. Received: {keras.backend.backend()}"
        )
    if not place.is_initialized():
        raise NotInitializedError(
            f"{function} was used before ringar.init(): call ringar.init() first."
        )
    optimizer = keras_2.optimizer_of(optimizer, "DistributedOptimizer")
    if any(isinstance(nested, DistributedMixin) for nested in with_nested(optimizer)):
        raise ValueError(
            "`optimizer` must not be distributed already: its gradients would be reduced twice. "
            f"Received: {type(optimizer).__name__}"
        )
    hooks.install("distributed training")
    hooks.install("callbacks of several ranks")
    return make_distributed(optimizer, exchange)


def is_distributed(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether `optimizer`, or the one in a `LossScaleOptimizer`, is distributed."""
    return exchange_of(optimizer) is not None


def build_exchange(optimizer: keras.optimizers.Optimizer) -> None:
    """Make the state of the exchange of a built optimizer, if it is distributed."""
    inner = inner_optimizer(optimizer)
    if isinstance(inner, DistributedMixin):
        inner._exchange.build(inner, inner._variables_of(None))


def grid_of(optimizer: keras.optimizers.Optimizer) -> Grid | None:
    """Return the grid of a distributed optimizer, or of the one in a `LossScaleOptimizer`."""
    exchange = exchange_of(optimizer)
    return None if exchange is None else exchange.reduction.grid
