"""Horovod's functions for Keras by itself; with Keras 3 it is the Keras of TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import keras as _keras

from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.common.reduce_op import Adasum, Average, ReduceOp
from ringar.horovod.keras import callbacks, elastic
from ringar.horovod.tensorflow import keras as _of_tensorflow
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.gradients import Groups
from ringar.horovod.tensorflow.keras import (
    ProcessSet,
    Sum,
    add_process_set,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    load_model,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    reducescatter,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from ringar.horovod.tensorflow.reductions import Compressor
from ringar.job.process_sets import ProcessSet as _ProcessSet

__all__ = [
    "init",
    "shutdown",
    "is_initialized",
    "start_timeline",
    "stop_timeline",
    "size",
    "local_size",
    "cross_size",
    "rank",
    "local_rank",
    "cross_rank",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "ProcessSet",
    "global_process_set",
    "add_process_set",
    "remove_process_set",
    "Average",
    "Sum",
    "Adasum",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "broadcast_global_variables",
    "allreduce",
    "allgather",
    "broadcast",
    "reducescatter",
    "load_model",
    "callbacks",
    "elastic",
]


def DistributedOptimizer(  # Horovod's name; Horovod has fewer arguments here
    optimizer: _keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: _ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> _keras.optimizers.Optimizer:
    """Make an optimizer of Keras reduce its gradients over the ranks.

    Arguments are those of `ringar.horovod.tensorflow.keras.DistributedOptimizer`.
    """
    return _of_tensorflow.DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(  # Horovod's name
    optimizer: _keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: _ProcessSet = global_process_set,
    local_layers: Sequence[_keras.layers.Layer] | _keras.layers.Layer | None = None,
    scale_local_gradients: bool = True,
) -> _keras.optimizers.Optimizer:
    """Make an optimizer reduce all gradients but those of `local_layers`.

    Arguments are those of `ringar.horovod.tensorflow.keras.PartialDistributedOptimizer`.
    """
    return _of_tensorflow.PartialDistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        local_layers=local_layers,
        scale_local_gradients=scale_local_gradients,
    )
