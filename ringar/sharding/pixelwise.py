"""The plane of which each tensor of a model is a tile, found from the model as it is built.

A functional or sequential model is a graph of symbolic tensors, each of which knows the layer that
made it. The graph is followed back to the layer that begins a plane. The layers of
`ringar.parallel.partitioned` tell their planes by `plane_after`. Every other operation
on a tile must treat each pixel by itself, as activations, dropout and sums do, so that it needs
nothing from other tiles. The rest is refused by name.

A model that is written as a Python function (a subclass of `keras.Model`) has no such graph, and
nothing is checked there.
"""

from __future__ import annotations

from typing import Any

import keras

from ringar.sharding.lineage import MIXING_ACTIVATIONS, inferred, origin, outputs_of
from ringar.sharding.lineage import describe as describe
from ringar.sharding.planes import Plane

_PLANE = "_ringar_plane"

#: The names of Keras' layers and operations that treat each pixel by itself. Their subclasses may
#: do otherwise: SpatialDropout2D drops whole channels, SplitDense has some of the units.
_PIXELWISE = {
    *("Activation", "ReLU", "LeakyReLU", "ELU", "Softmax", "Identity", "Rescaling"),
    *("Dropout", "GaussianDropout", "GaussianNoise", "AlphaDropout"),
    *("SyncBatchNormalization", "LocalResponseNormalization", "LayerNormalization", "Dense"),
    *("Add", "Subtract", "Multiply", "Divide", "Average", "Maximum", "Minimum", "Negative"),
    *("Concatenate", "Relu", "Relu6", "Sigmoid", "Tanh", "Gelu", "Silu", "Elu", "Softplus"),
    *("Exp", "Square"),
}

_REMEDY = (
    "Use a partitioned layer of ringar.layers, or join the plane before it with "
    "ringar.layers.GatherPlane(), or FlattenPlane() before a SplitDense."
)


def plane_of(tensor: keras.KerasTensor) -> Plane | None:
    """Return the plane of which a symbolic tensor is a tile; None if it is whole or unknown.

    Raises:
        ValueError: an operation on the path does not treat each pixel by itself, or a partitioned
            layer gets another plane than it was built for.
    """
    plane: Plane | None = inferred(tensor, _PLANE, _plane)
    return plane


def sources(tensor: keras.KerasTensor) -> list[keras.KerasTensor]:
    """Return the inputs of the model from which a symbolic tensor is computed."""
    tensors: dict[int, keras.KerasTensor] = {}
    ids, stack = set(), [tensor]
    while stack:
        top = stack.pop()
        if id(top) not in ids:
            ids.add(id(top))
            _, inputs = origin(top)
            stack.extend(inputs)
            if not inputs:
                tensors[id(top)] = top
    return list(tensors.values())


def check_outputs(model: keras.Model) -> None:
    """Check that the outputs of a model are whole, if it has a graph.

    Raises:
        ValueError: one is a tile.
    """
    for output in outputs_of(model):
        plane = plane_of(output)
        if plane is not None:
            raise ValueError(
                "The outputs of a model must be whole on every rank. Received: a tile of a plane "
                f"of {plane}, of {describe(origin(output)[0])}. End with "
                "ringar.layers.GatherPlane(), or a partitioned global pooling."
            )


def _plane(tensor: keras.KerasTensor, operation: keras.Operation, inputs: list[Any]) -> Any:
    """Return the plane of a tensor, given those of its operation's inputs."""
    if operation is None or not inputs:
        return None
    planes = [getattr(t, _PLANE) for t in inputs]
    if hasattr(operation, "plane_after"):
        return operation.plane_after(planes[0])
    cut = [plane for plane in planes if plane is not None]
    if isinstance(operation, keras.Model) and not cut:
        outputs = outputs_of(operation)
        return plane_of(outputs[tensor._keras_history.tensor_index]) if outputs else None
    if not cut:
        return None
    if any(plane != cut[0] for plane in planes):
        received = ", ".join("a whole tensor" if p is None else f"a plane of {p}" for p in planes)
        raise ValueError(
            f"{describe(operation)} must get inputs that are all tiles of planes of one size. "
            f"Received: {received}. {_REMEDY}"
        )
    _check(operation, cut[0], inputs[0], tensor)
    return cut[0]


def _check(
    operation: keras.Operation, plane: Plane, before: keras.KerasTensor, after: keras.KerasTensor
) -> None:
    """Refuse an operation that does not treat each pixel of a plane by itself."""
    names = {cls.__name__ for cls in type(operation).__mro__}
    if isinstance(operation, keras.layers.BatchNormalization) and not (
        "SyncBatchNormalization" in names and _knows_all_tiles(operation, plane)
    ):
        raise ValueError(
            f"{describe(operation)} must normalize by the statistics of all tiles of a plane. "
            "Received: a layer that does not know them. Use "
            "ringar.layers.SyncBatchNormalization() without a grid: its channels are whole."
        )
    if getattr(operation, "activity_regularizer", None) is not None:
        raise ValueError(
            f"`activity_regularizer` must be None in {describe(operation)}, where a plane is cut: "
            "each rank would add the penalty of its tile alone. Penalize behind GatherPlane."
        )
    has_shape = len(after.shape) == len(before.shape) and all(
        after.shape[axis] == before.shape[axis] for axis in plane.axes
    )
    declared = bool(getattr(operation, "is_pixelwise", False))
    is_pixelwise = type(operation).__name__ in _PIXELWISE and _acts_on_channels(operation, plane)
    if not has_shape or not (declared or is_pixelwise):
        raise ValueError(
            f"{describe(operation)} must treat each pixel by itself, where a plane is cut. "
            f"Received: a layer that is not known to, on a plane of {plane}. {_REMEDY} For a layer "
            "of your own that does, set its attribute `is_pixelwise = True`."
        )


def _knows_all_tiles(operation: Any, plane: Plane) -> bool:
    """Return whether a SyncBatchNormalization shares statistics with the ranks of a plane."""
    ranks = operation.process_set if operation.grid is None else operation.grid.data_set
    return ranks is None or set(plane.grid.model_set.ranks) <= set(ranks.ranks)


def _acts_on_channels(operation: keras.Operation, plane: Plane) -> bool:
    """Return whether a layer that has an axis, or the last one, has that of the channels."""
    last = isinstance(operation, keras.layers.Dense) or (
        getattr(operation, "activation", None) in MIXING_ACTIVATIONS
    )
    if last:
        return plane.channel_axis == 3
    if not hasattr(operation, "axis"):
        return True
    axes = operation.axis if isinstance(operation.axis, list | tuple) else [operation.axis]
    return all(axis is not None and axis % 4 == plane.channel_axis for axis in axes)
