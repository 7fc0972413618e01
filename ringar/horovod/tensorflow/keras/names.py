"""The functions of Horovod's Keras modules: its functions of TensorFlow, for values of Keras."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.common.reduce_op import Average, ReduceOp
from ringar.horovod.tensorflow import mpi_ops
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.gradients import Groups, Settings, groups_of
from ringar.horovod.tensorflow.optimizer import layers_of, of_keras
from ringar.horovod.tensorflow.reductions import Compressor
from ringar.job.process_sets import ProcessSet
from ringar.keras.share import optimizers_of
from ringar.sharding.slots import inner_optimizer


def DistributedOptimizer(  # Horovod's name, for a function that returns an object
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Make an optimizer of Keras reduce its gradients over the ranks.

    Args:
        optimizer: the object itself becomes distributed, and gets a method `register_local_var`,
            which keeps the gradients of a variable on this rank.
        name: no effect.
        device_dense: no effect.
        device_sparse: no effect.
        compression: how gradients travel.
        sparse_as_dense: reduce the `tf.IndexedSlices` of an Embedding as dense gradients.
        gradient_predivide_factor: of an average, divide by it before the sum, multiply after it.
        op: Average or Sum.
        backward_passes_per_step: how many batches add up their gradients before a reduction and a
            step of the optimizer, whose `iterations` count batches.
        average_aggregated_gradients: divide the sum by that number.
        num_groups: deprecated; `groups` takes its place.
        groups: the number of groups of gradients, or a list of variables for each group.
        process_set: the ranks that reduce; others train alone.
        scale_local_gradients: divide gradients of local variables by the number of ranks.

    Raises:
        ValueError: an argument is out of range, or before `init`.
    """
    del name, device_dense, device_sparse
    return of_keras(
        optimizer,
        Settings(
            op,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            groups_of(num_groups, groups),
            process_set,
            scale_local_gradients,
            backward_passes_per_step,
            average_aggregated_gradients,
        ),
    )


def PartialDistributedOptimizer(  # Horovod's name
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Sequence[keras.layers.Layer] | keras.layers.Layer | None = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Make an optimizer reduce all gradients but those of `local_layers`, which are built.

    The other arguments are those of `DistributedOptimizer`.

    Raises:
        ValueError: an item of `local_layers` is no layer, or an argument is out of range.
    """
    del name, device_dense, device_sparse
    settings = Settings(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        groups_of(num_groups, groups),
        process_set,
        scale_local_gradients,
        backward_passes_per_step,
        average_aggregated_gradients,
    )
    return of_keras(optimizer, settings, layers_of(local_layers))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Compressor = Compression.none,
) -> tf.Tensor:
    """Reduce a value over all ranks, as `ringar.horovod.tensorflow.allreduce` does."""
    return mpi_ops.allreduce(
        tf.convert_to_tensor(value),
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> tf.Tensor:
    """Concatenate the values of all ranks along the first dimension, which may differ."""
    return mpi_ops.allgather(tf.convert_to_tensor(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """Send the root rank's value to all ranks."""
    return mpi_ops.broadcast(tf.convert_to_tensor(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> tf.Tensor:
    """Reduce a value over all ranks, and leave each rank its share of the rows."""
    return mpi_ops.reducescatter(tf.convert_to_tensor(value), op=op, name=name)


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: Mapping[str, object] | None = None,
    compression: Compressor = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Load a model on this rank, with an optimizer that is distributed.

    No other rank takes part: one rank may resume, and broadcast its weights when training begins.

    Args:
        filepath: a `.keras` or `.h5` file.
        custom_optimizers: classes of optimizers that are not Keras' own.
        custom_objects: as for `keras.models.load_model`.
        compression: as for `DistributedOptimizer`.
        legacy_opts: no effect: Keras 3 has no legacy optimizers.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no model.
    """
    del legacy_opts
    objects = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, objects)
    for optimizer in optimizers_of(model):
        DistributedOptimizer(inner_optimizer(optimizer), compression=compression)
    return model
