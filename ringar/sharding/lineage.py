"""The axis along which each tensor of a model is split, found from the model as it is built.

A functional or sequential model is a graph of symbolic tensors, each of which knows the layer that
made it. When a layer is added, the graph is followed back to the split layer, join or input where
the tensor's channels begin. Every operation on the path must treat each channel by itself.
Activations, pooling, dropout, padding and batch normalization do. A `Flatten` that interleaves the
channels, a `Dense` and a softmax over all channels do not, and are refused.

A model that is written as a Python function (a subclass of `keras.Model`) has no such graph.
Nothing is checked there, and variables of layers within a split must be marked with
`ringar.parallel.own`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from ringar.sharding.cut import Cut, mark

if TYPE_CHECKING:
    from ringar.sharding.grid import Grid


def own(layer: keras.layers.Layer, grid: Grid) -> None:
    """Mark the variables of a layer within a split as parts: it has this rank's channels only.

    Args:
        layer: a built `BatchNormalization` or `PReLU`.
        grid: the grid over which the channels are split.

    Raises:
        ValueError: it is another kind of layer.
    """
    if not isinstance(layer, CHANNELWISE_WITH_WEIGHTS):
        raise ValueError(
            f"{describe(layer)} must treat each channel by itself, between a split layer and "
            f"its join. Received: a layer with weights for all channels. {_REMEDY}"
        )
    for variable in layer.variables:
        if len(variable.shape):  # neither a seed nor a counter
            mark(variable, Cut(len(variable.shape) - 1, grid))


CHANNELWISE_WITH_WEIGHTS = (keras.layers.BatchNormalization, keras.layers.PReLU)

MIXING_ACTIVATIONS = tuple(
    getattr(keras.activations, name)
    for name in ("softmax", "log_softmax", "sparsemax", "glu")
    if hasattr(keras.activations, name)
)
"""Activations that need the channels of all parts."""

_REMEDY = (
    "Use SplitConv2D or SplitDense of ringar.layers, or end the split before it with "
    "ringar.layers.Gather()."
)
#: The names of Keras' layers and operations that treat each channel by itself.
_CHANNELWISE = {
    *("Activation", "ReLU", "LeakyReLU", "ELU", "PReLU", "Identity", "Rescaling"),
    *("BatchNormalization", "SyncBatchNormalization", "LocalResponseNormalization"),
    *("Dropout", "SpatialDropout1D", "SpatialDropout2D", "GaussianDropout", "GaussianNoise"),
    *(f"{kind}Pooling{n}D" for kind in ("Max", "Average", "GlobalMax", "GlobalAverage")
      for n in (1, 2, 3)),
    *(f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)),
    *("Add", "Subtract", "Multiply", "Divide", "Average", "Maximum", "Minimum", "Negative"),
    *("Relu", "Relu6", "Sigmoid", "Tanh", "Gelu", "Silu", "Elu", "Softplus", "Exp", "Square"),
}  # fmt: skip


def split_axis(tensor: keras.KerasTensor) -> int | None:
    """Return the axis along which a symbolic tensor is split; None if it is whole or unknown.

    Raises:
        ValueError: an operation on the path does not treat each channel by itself.
    """
    axis: int | None = inferred(tensor, _AXIS, _axis, _begins_channels)
    return axis


_AXIS = "_ringar_split_axis"


def inferred(
    tensor: keras.KerasTensor,
    attribute: str,
    rule: Callable[[Any, Any, list[Any]], Any],
    is_source: Callable[[Any], bool] = lambda operation: False,
) -> Any:
    """Return a property of a symbolic tensor, after those of the tensors that it depends on.

    Args:
        tensor: the tensor.
        attribute: the attribute in which each tensor keeps the property.
        rule: computes the property of a tensor from the tensor, its operation and its inputs.
        is_source: whether `rule` does not need the properties of an operation's inputs.
    """
    # No recursion, because models are deep; each tensor once, because branches join.
    stack = [tensor]
    while stack:
        top = stack[-1]
        operation, inputs = origin(top)
        needs = [] if is_source(operation) else [t for t in inputs if not hasattr(t, attribute)]
        stack.extend(needs)
        if not needs:
            if not hasattr(top, attribute):
                setattr(top, attribute, rule(top, operation, inputs))
            stack.pop()
    return getattr(tensor, attribute)


def _begins_channels(operation: Any) -> bool:
    return hasattr(operation, "writes_channels")


def _axis(tensor: keras.KerasTensor, operation: keras.Operation, inputs: list[Any]) -> int | None:
    """Return the axis of a tensor, given those of its operation's inputs."""
    if operation is None or not inputs:
        return None
    writes = getattr(operation, "writes_channels", None)
    if writes == "addend":
        raise ValueError(
            f'{describe(operation)} with writes="addend" must be followed by ringar.layers.Sum(), '
            "which adds up the addends of the parts. Received: something else."
        )
    if writes is not None:  # a split layer or a join
        return operation.channel_axis % len(tensor.shape) if writes == "own" else None
    axes = {getattr(t, _AXIS) for t in inputs}
    if isinstance(operation, keras.Model):
        if axes != {None}:
            raise ValueError(
                f"{describe(operation)} must get inputs that every rank has whole. Received: "
                f"one that is split: the channels within a model cannot be followed. {_REMEDY}"
            )
        outputs = outputs_of(operation)
        return split_axis(outputs[tensor._keras_history.tensor_index]) if outputs else None
    if axes == {None}:
        return None
    if len(axes) > 1:
        raise ValueError(
            f"{describe(operation)} must get inputs that are all split alike. "
            f"Received: some that are, and some that are not. {_REMEDY}"
        )
    (axis,) = axes
    return _axis_after(operation, axis, inputs[0], tensor)


def check_outputs(model: keras.Model) -> None:
    """Check that the outputs of a model are whole, if it has a graph.

    Raises:
        ValueError: a split is not ended.
    """
    for output in outputs_of(model):
        if split_axis(output) is not None:
            raise ValueError(
                "The outputs of a model must be whole on every rank. Received: the channels of one "
                f"part, of layer {source(output).name}. End the split with ringar.layers.Gather()."
            )


def outputs_of(model: keras.Model) -> list[keras.KerasTensor]:
    """Return the symbolic outputs of a model; none if it has no graph."""
    try:
        return list(keras.tree.flatten(model.outputs or []))
    except (AttributeError, ValueError):  # a subclass, or a Sequential before it is built
        return []


def producer(tensor: keras.KerasTensor) -> keras.Operation | None:
    """Return the layer or operation that made a symbolic tensor; None for an input."""
    operation, inputs = origin(tensor)
    return operation if inputs else None


def source(tensor: keras.KerasTensor) -> Any:
    """Return the layer that begins the channels of a symbolic tensor; None: the model's input."""
    operation, inputs = origin(tensor)
    while inputs and not _begins_channels(operation):
        operation, inputs = origin(inputs[0])
    return operation if inputs else None


def layers_within(tensor: keras.KerasTensor) -> list[Any]:
    """Return the layers with weights between the beginning of a split and a symbolic tensor."""
    layers: dict[int, Any] = {}
    ids, stack = set(), [tensor]
    while stack:
        top = stack.pop()
        operation, inputs = origin(top)
        if id(top) in ids or not inputs or _begins_channels(operation):
            continue
        ids.add(id(top))
        stack.extend(inputs)
        if getattr(operation, "weights", None):
            layers[id(operation)] = operation
    return list(layers.values())


def origin(tensor: keras.KerasTensor) -> tuple[Any, list[Any]]:
    """Return the operation that made a symbolic tensor and its symbolic inputs; None without."""
    history = getattr(tensor, "_keras_history", None)
    if history is None:
        return None, []
    node = history.operation._inbound_nodes[history.node_index]
    return history.operation, [t for t in node.input_tensors if hasattr(t, "_keras_history")]


def _axis_after(
    operation: keras.Operation, axis: int, before: keras.KerasTensor, after: keras.KerasTensor
) -> int:
    """Return the axis after an operation that is neither a split layer nor a join."""
    if isinstance(operation, keras.layers.Permute):
        return axis if axis == 0 else 1 + operation.dims.index(axis)
    if isinstance(operation, keras.layers.Flatten):
        dims = [dim for i, dim in enumerate(before.shape) if i not in (0, axis)]
        if axis != 1 and any(dim != 1 for dim in dims):
            raise ValueError(
                f"{describe(operation)} must not mix the channels of a split. Received: "
                f"channels of shape {before.shape}. Put keras.layers.Permute((3, 1, 2)) before it, "
                "so that channels are contiguous, or ringar.layers.Gather()."
            )
        return 1
    names = {cls.__name__ for cls in type(operation).__mro__}
    softmax = getattr(operation, "activation", None) in MIXING_ACTIVATIONS
    if softmax or not (names & _CHANNELWISE or _says_channelwise(operation)):
        raise ValueError(
            f"{describe(operation)} must treat each channel by itself, between a split layer and "
            f"its join. Received: one that is not known to. {_REMEDY} For a layer of your own that "
            "does, set its attribute `is_channelwise = True`."
        )
    if len(after.shape) < len(before.shape):  # global pooling, which leaves the channels
        return len(after.shape) - 1
    return axis


def _says_channelwise(operation: keras.Operation) -> bool:
    """Return whether a layer's author has declared that it treats each channel by itself."""
    if hasattr(operation, "treats_maps_alone"):
        warnings.warn(
            f"{describe(operation)} sets `treats_maps_alone`, which is now called "
            "`is_channelwise`. The old name works in this release only.",
            DeprecationWarning,
            stacklevel=2,
        )
        return bool(operation.treats_maps_alone)
    return bool(getattr(operation, "is_channelwise", False))


def describe(operation: keras.Operation) -> str:
    """Return the class and the name of a layer or operation."""
    return f'{type(operation).__name__} "{operation.name}"'
