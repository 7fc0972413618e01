"""Horovod's distributed optimizers, for optimizers of Keras 3."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from ringar.horovod.common.exceptions import UninitializedError
from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.common.reduce_op import Average, ReduceOp, Sum
from ringar.horovod.common.signatures import with_parameters
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.gradients import GradientReduction, Groups, Settings, groups_of
from ringar.horovod.tensorflow.reductions import Compressor
from ringar.job import place
from ringar.job.process_sets import ProcessSet
from ringar.keras.optimizer import distribute

Result = TypeVar("Result")


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

    Args:
        optimizer: the object itself becomes distributed, and gets a method `register_local_var`,
            which keeps the gradients of a variable on this rank.
        name: no effect, as have `use_locking`, `device_dense` and `device_sparse`.
        use_locking: no effect.
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
        groups: reduce gradients in so many groups, or those of the variables in each list together.
        process_set: the ranks that reduce; others train alone.
        scale_local_gradients: divide gradients of local variables by the number of ranks.

    Raises:
        ValueError: the optimizer is one of TensorFlow 1, an argument is out of range, or before
            `init`.
    """
    del name, use_locking, device_dense, device_sparse
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
    if op not in (Average, Sum):
        raise ValueError(f"`op` must be Average or Sum. Received: op={op!r}")
    if not place.is_initialized():
        raise UninitializedError("DistributedOptimizer: call init() first")
    reduction = GradientReduction(settings)
    distributed = distribute(optimizer, reduction.exchange(), "DistributedOptimizer")
    # Bypass Keras' __setattr__, which tracks attributes.
    object.__setattr__(distributed, "register_local_var", reduction.register_local_var)
    return distributed


def partial(function: Callable[..., Result], method: str, module: str) -> Callable[..., Result]:
    """Return a function with an argument `local_layers`, whose gradients stay on this rank.

    Args:
        function: makes an optimizer or a tape.
        method: the name of its method that registers a variable as local.
        module: the module that has the result.
    """
    *parameters, final = inspect.signature(function).parameters.values()
    local = inspect.Parameter(
        "local_layers",
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation="Sequence[keras.layers.Layer] | keras.layers.Layer | None",
    )

    @functools.wraps(function)
    def call(*, local_layers: Any = None, **kwargs: Any) -> Result:
        layers = layers_of(local_layers)
        result = function(**kwargs)
        for weight in (weight for layer in layers for weight in layer.trainable_weights):
            getattr(result, method)(weight)
        return result

    call.__name__ = f"Partial{function.__name__}"
    call.__doc__ = (
        f"Do as `{function.__name__}`, but keep gradients of `local_layers` on this rank."
    )
    return with_parameters(call, [*parameters, local, final], module)


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
