"""The functions of Horovod's Keras modules: those of TensorFlow, on what Keras has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.horovod.common import names
from ringar.horovod.common.names import *  # noqa: F403
from ringar.horovod.common.reduce_op import Average, ReduceOp
from ringar.horovod.common.signatures import arranged
from ringar.horovod.tensorflow import mpi_ops, optimizer
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.functions import broadcast_global_variables
from ringar.horovod.tensorflow.reductions import Compressor
from ringar.keras.training_state import optimizers
from ringar.sharding.slots import inner_optimizer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "broadcast_global_variables",
    "allreduce",
    "allgather",
    "broadcast",
    "reducescatter",
    "load_model",
]
__all__ += names.__all__


DistributedOptimizer = arranged(
    optimizer.DistributedOptimizer,
    __name__,
    "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients num_groups "
    "groups process_set scale_local_gradients",
)

PartialDistributedOptimizer = optimizer.partial(
    DistributedOptimizer, "register_local_var", __name__
)


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
    for trained in optimizers(model):
        DistributedOptimizer(inner_optimizer(trained), compression=compression)
    return model
