"""Horovod's distributed optimizers, for optimizers of Keras 3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.horovod.common.exceptions import UninitializedError
from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.common.reduce_op import Average, ReduceOp, Sum
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.gradients import GradientReduction, Groups, Settings, groups_of
from ringar.horovod.tensorflow.reductions import Compressor
from ringar.job import place
from ringar.job.process_sets import ProcessSet
from ringar.keras.optimizer import distribute


def DistributedOptimizer(  # Horovod's name, for a function that returns an object
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Make an optimizer of Keras reduce its gradients over the ranks.

    Arguments are those of `ringar.horovod.tensorflow.keras.DistributedOptimizer`, in the order of
    `horovod.tensorflow`.

    Raises:
        ValueError: the optimizer is one of TensorFlow 1, or an argument is out of range.
    """
    del use_locking
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ValueError(
            "DistributedOptimizer expected an optimizer of Keras 3, received "
            f"{type(optimizer).__name__} of TensorFlow 1; take that of keras.optimizers, or a "
            "DistributedGradientTape"
        )
    if op is ReduceOp.Adasum:
        raise ValueError(
            "`op` must be Average or Sum for an optimizer of Keras. Received: op=Adasum; a "
            "DistributedGradientTape takes it"
        )
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


def of_keras(
    optimizer: keras.optimizers.Optimizer,
    settings: Settings,
    local_layers: Iterable[keras.layers.Layer] = (),
) -> keras.optimizers.Optimizer:
    """Make an optimizer reduce its gradients as `settings` say.

    Args:
        optimizer: the object itself becomes distributed.
        settings: the arguments of the user.
        local_layers: those whose gradients stay on this rank.
    """
    if settings.op not in (Average, Sum):
        raise ValueError(f"`op` must be Average or Sum. Received: op={settings.op!r}")
    if not place.is_initialized():
        raise UninitializedError("DistributedOptimizer: call init() first")
    reduction = GradientReduction(settings)
    distributed = distribute(optimizer, reduction.exchange(), "DistributedOptimizer")
    for variable in weights_of(local_layers):
        reduction.register_local_var(variable)
    # Bypass Keras' __setattr__, which tracks attributes.
    object.__setattr__(distributed, "register_local_var", reduction.register_local_var)
    return distributed


def weights_of(local_layers: Iterable[keras.layers.Layer]) -> list[keras.Variable]:
    """Return the trainable weights of layers."""
    return [weight for layer in local_layers for weight in layer.trainable_weights]


def layers_of(local_layers: Any) -> Sequence[keras.layers.Layer]:
    """Return the argument `local_layers`, which may be None or one layer, as a sequence.

    Raises:
        ValueError: an item is no layer.
    """
    layers = [local_layers] if isinstance(local_layers, keras.layers.Layer) else local_layers or ()
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"`local_layers` must be layers of Keras. Received: {layer!r}")
    return list(layers)
