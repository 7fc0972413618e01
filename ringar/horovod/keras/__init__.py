"""Horovod's functions for Keras by itself; with Keras 3 it is the Keras of TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import keras as _keras

from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.common.reduce_op import Average, ReduceOp
from ringar.horovod.keras import callbacks as callbacks
from ringar.horovod.keras import elastic as elastic
from ringar.horovod.tensorflow import keras as _of_tensorflow
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.gradients import Groups
from ringar.horovod.tensorflow.keras import *  # noqa: F403
from ringar.horovod.tensorflow.mpi_ops import Compressor
from ringar.job.process_sets import ProcessSet

__all__ = _of_tensorflow.__all__


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
    process_set: ProcessSet = global_process_set,
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
    process_set: ProcessSet = global_process_set,
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
