"""Conversion of a split model to the one-process model, and back, for any number of parts.

Both functions walk through the graph of a functional or sequential model and build a second one,
layer by layer. Then they copy the weights and the optimizer's state. While a model is merged, every
rank holds the whole variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from ringar.keras.batch_normalization import SyncBatchNormalization
from ringar.keras.grouped import GroupedConv2D, GroupedDense
from ringar.keras.local_response_normalization import LocalResponseNormalization
from ringar.keras.optimizer import DistributedOptimizer, is_distributed
from ringar.parallel.joins import Gather, Join
from ringar.parallel.partitioned.layer import OnPlane
from ringar.parallel.partitioned.ways import OwnTile
from ringar.parallel.split_layers import SplitConv2D, SplitDense
from ringar.sharding import lineage, pixelwise, slots
from ringar.sharding.cut import Cut, cut_of
from ringar.sharding.grid import Grid, resolve
from ringar.sharding.whole import whole_of, whole_variables

Substitute = Callable[..., Any]


def merge(model: keras.Model) -> keras.Model:
    """Return the one-process model of a split one, on every rank. Collective over all ranks.

    A layer with `reads="own"` becomes a layer with groups; joins become `Identity`. Partitioned
    layers become layers that compute the same on whole images, and the model reads these. If
    `model` is compiled, so is the result, with a plain optimizer that has the state of the model's
    optimizer.

    Args:
        model: a functional or sequential model, built.

    Returns:
        A model of Keras' layers, and of `GroupedDense` and `LocalResponseNormalization` if it has
        them. The names of layers are kept. `model.save` writes it like any other model.

    Raises:
        ValueError: it is another kind of model.

    Example:
    ```python
    merged = ringar.parallel.merge(model)
    if ringar.rank() == 0:
        merged.save("model.keras")
    ```
    """
    copies: dict[int, tuple[Any, Any]] = {}

    def substitute(operation: keras.Operation) -> Substitute:
        if not isinstance(operation, keras.layers.Layer):
            return operation

        def call(*args: Any, **kwargs: Any) -> Any:
            if id(operation) not in copies:
                copies[id(operation)] = operation, _whole_layer(operation)
            return copies[id(operation)][1](*args, **kwargs)

        return call

    model_of_all = rebuild(model, substitute, shapes=_shapes_of_tiles(model))
    for layer, other in copies.values():
        for variable, target in zip(layer.weights, other.weights, strict=True):
            target.assign(whole_of(variable, cut_of(variable)))
    if getattr(model, "optimizer", None) is not None:
        model_of_all.compile_from_config(model.get_compile_config())
        if model.optimizer.built:  # else it has no state
            values = whole_variables(model.optimizer)
            for target, value in zip(model_of_all.optimizer.variables, values, strict=True):
                target.assign(value)
    return model_of_all


def split(
    model: keras.Model,
    grid: Grid | None = None,
    layers: Iterable[str] | None = None,
    *,
    sync_batch_norm: bool = True,
) -> keras.Model:
    """Cut a one-process model for a grid. All ranks pass the same model.

    `Conv2D` and `Dense` layers are cut over the parts. The first layer of a split reads its whole
    input. A later layer reads its rank's own channels if the number of parts divides that of its
    groups, otherwise the channels of all parts. A `Gather` ends the split at the outputs, and
    before a layer that needs all channels and cannot be cut. If `model` is compiled, so is the
    result, with a distributed optimizer that has the state of the model's optimizer.

    Args:
        model: a functional or sequential model, built, from `keras.models.load_model` or `merge`,
            for example.
        grid: the grid; by default the current one. It may have another number of parts than a
            model that was merged.
        layers: names of the layers to cut; by default all layers whose kernels the parts divide.
        sync_batch_norm: make every `BatchNormalization` a `SyncBatchNormalization`, with the
            statistics of the global batch, as on one process; otherwise each rank uses its own
            batch.

    Returns:
        The model of this rank, with layers of the same names.

    Raises:
        ValueError: it is another kind of model, `layers` has an unknown name, or the parts do not
            divide the kernels of a layer in `layers`.
    """
    grid = resolve(grid, "ringar.parallel.split")
    layer_names = None if layers is None else set(layers)
    copies: dict[int, tuple[Any, Any]] = {}

    def substitute(operation: keras.Operation) -> Substitute:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not isinstance(operation, keras.layers.Layer):
                return _joined_where_needed(lambda _: operation, grid, args, kwargs)
            if id(operation) in copies:
                return copies[id(operation)][1](*args, **kwargs)
            layer = _part_of(operation, args[0], grid, layer_names)
            if layer is not None:
                copies[id(operation)] = operation, layer
                outputs = layer(*args, **kwargs)
                if operation.activation not in lineage.MIXING_ACTIVATIONS:
                    return outputs
                gathered = Gather(name=f"{layer.name}_gather", grid=grid)(outputs)
                activate = keras.layers.Activation(
                    operation.activation, name=f"{layer.name}_activation"
                )
                return activate(gathered)

            def make_copy(x: Any) -> Any:
                copies[id(operation)] = operation, _local_layer(operation, x, grid, sync_batch_norm)
                return copies[id(operation)][1]

            return _joined_where_needed(make_copy, grid, args, kwargs)

        return call

    part = rebuild(model, substitute, lambda output: _whole_output(output, grid))
    names = (layer_names or set()) - {layer.name for layer, _ in copies.values()}
    if names:
        raise ValueError(f"`layers` must be names of layers of the model. Received: {names}")
    give_parts(model, part, copies.values(), grid)
    return part


def give_parts(
    model: keras.Model, part: keras.Model, pairs: Iterable[tuple[Any, Any]], grid: Grid
) -> None:
    """Give a model its parts of the weights of another, and of the optimizer's state.

    Args:
        model: the model that has been cut.
        part: the new one; compiled with a distributed optimizer if `model` is compiled.
        pairs: layers of `model`, each with its layer of `part`.
        grid: the grid.
    """
    for layer, other in pairs:
        for variable, target in zip(layer.weights, other.weights, strict=True):
            target.assign(_cut(variable, cut_of(variable), cut_of(target)))
    if getattr(model, "optimizer", None) is None:
        return
    part.compile_from_config(model.get_compile_config())
    optimizer = part.optimizer
    if not is_distributed(optimizer):
        optimizer = DistributedOptimizer(optimizer, grid=grid)
    if not model.optimizer.built:  # it has no state
        return
    cuts = zip(slots.cuts(model.optimizer), slots.cuts(optimizer), strict=True)
    triples = zip(model.optimizer.variables, optimizer.variables, cuts, strict=True)
    for variable, target, (before, cut) in triples:
        target.assign(_cut(variable, before, cut))


def rebuild(
    model: keras.Model,
    substitute: Callable[[Any], Substitute],
    last: Callable[[Any], Any] = lambda x: x,
    shapes: Mapping[int, Sequence[int | None]] | None = None,
) -> keras.Model:
    """Build the graph of `model` again, on new inputs, with `substitute(layer)` for each layer.

    Args:
        model: a functional or sequential model, built.
        substitute: returns the function that is called in place of a layer.
        last: the function that is called on each output.
        shapes: the shapes of inputs that change in the new model, by the input's id.
    """
    graph = getattr(model, "_functional", None) or model  # of a Sequential
    if not hasattr(graph, "_run_through_graph"):
        raise ValueError(
            "`model` must be a functional or sequential model that is built. "
            f"Received: {type(model).__name__} {model.name}"
        )

    def substitute_or_enter(operation: keras.Operation) -> Substitute:
        inner = getattr(operation, "_functional", None) or operation
        if isinstance(operation, keras.Model) and hasattr(inner, "_run_through_graph"):
            return lambda x, **_: inner._run_through_graph(x, operation_fn=substitute_or_enter)
        return substitute(operation)

    inputs = keras.tree.map_structure(
        lambda x: keras.Input(
            batch_shape=(shapes or {}).get(id(x), x.shape), dtype=x.dtype, name=x.name
        ),
        graph.input,
    )
    outputs = graph._run_through_graph(inputs, operation_fn=substitute_or_enter)
    return keras.Model(inputs, keras.tree.map_structure(last, outputs), name=model.name)


def _shapes_of_tiles(model: keras.Model) -> dict[int, tuple[int | None, ...]]:
    """Return the shapes of whole images for the inputs of a model that are given as tiles."""
    shapes: dict[int, tuple[int | None, ...]] = {}
    for layer in model._flatten_layers():
        if isinstance(layer, OwnTile):
            for tensor in pixelwise.sources(layer.input):
                shapes[id(tensor)] = layer.whole_shape(tensor.shape)
    return shapes


def _whole_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    config = layer.get_config()
    if isinstance(layer, SplitConv2D | SplitDense):
        del config["reads"], config["writes"]
        if isinstance(layer, SplitConv2D):
            return keras.layers.Conv2D.from_config(config)
        if layer.whole_groups > 1:
            return GroupedDense.from_config(config)
        del config["groups"]
        return keras.layers.Dense.from_config(config)
    if isinstance(layer, OnPlane):
        return layer.whole_layer()
    if isinstance(layer, Join):
        return keras.layers.Identity(name=layer.name, dtype=layer.dtype_policy.name)
    if isinstance(layer, SyncBatchNormalization):
        return keras.layers.BatchNormalization.from_config(config)
    if isinstance(layer, LocalResponseNormalization):
        config["groups"] *= _parts_at(layer)
    return type(layer).from_config(config)


def _parts_at(layer: keras.layers.Layer) -> int:
    """Return the number of parts over which the input of a layer is split."""
    tensor = layer.input
    if lineage.split_axis(tensor) is None:
        return 1
    return int(lineage.source(tensor).grid.model)


def _part_of(
    layer: keras.layers.Layer, x: keras.KerasTensor, grid: Grid, layer_names: set[str] | None
) -> keras.layers.Layer | None:
    """Return this rank's part of the layer; None if the layer stays whole."""
    kind = {
        keras.layers.Conv2D: SplitConv2D, GroupedConv2D: SplitConv2D,
        keras.layers.Dense: SplitDense, GroupedDense: SplitDense,
    }.get(type(layer))  # fmt: skip
    if kind is None or (layer_names is not None and layer.name not in layer_names):
        return None
    config = layer.get_config()
    kernels = config["filters" if kind is SplitConv2D else "units"]
    groups = config.pop("groups", 1)
    fits = kernels % grid.model == 0 and (groups % grid.model == 0 or grid.model % groups == 0)
    if not fits and layer_names is None:
        return None
    axis = lineage.split_axis(x)
    channel_axis = 1 if config.get("data_format") == "channels_first" else len(x.shape) - 1
    if axis not in (None, channel_axis):
        x = axis = None
    reads = "whole" if axis is None else "own" if groups % grid.model == 0 else "all"
    if layer.activation in lineage.MIXING_ACTIVATIONS:
        config["activation"] = None
    return kind(reads=reads, groups=groups, grid=grid, **_without_defaults(config))


def _without_defaults(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "quantization_config"}


def _local_layer(
    layer: keras.layers.Layer, x: keras.KerasTensor, grid: Grid, sync_batch_norm: bool
) -> keras.layers.Layer:
    """Return a copy of a layer that is not cut, for this rank's channels if its input is split."""
    config = layer.get_config()
    is_split = _is_split(x)
    if is_split and isinstance(layer, keras.layers.Identity):
        return Gather(name=layer.name, grid=grid)
    if is_split and isinstance(layer, LocalResponseNormalization):
        if config["groups"] % grid.model:
            raise ValueError(
                f"`groups` of {layer.name} must be divisible by the number of parts. "
                f"Received: groups={config['groups']}, model={grid.model}"
            )
        config["groups"] //= grid.model
    if sync_batch_norm and type(layer) is keras.layers.BatchNormalization and grid.data > 1:
        return SyncBatchNormalization.from_config(config)
    if isinstance(layer, OnPlane):
        config["grid"] = layer.grid
    return type(layer).from_config(config)


def _is_split(x: Any) -> bool:
    return any(lineage.split_axis(t) is not None for t in keras.tree.flatten(x))


def _joined_where_needed(
    make: Callable[[Any], Any], grid: Grid, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a layer on its inputs, after a `Gather` if it cannot work on a part."""
    try:
        outputs = make(args[0])(*args, **kwargs)
        for output in keras.tree.flatten(outputs):
            lineage.split_axis(output)
        return outputs
    except ValueError:
        if not _is_split(args):
            raise
    args = keras.tree.map_structure(lambda x: _whole_output(x, grid), args)
    return make(args[0])(*args, **kwargs)


def _whole_output(x: keras.KerasTensor, grid: Grid) -> keras.KerasTensor:
    axis = lineage.split_axis(x)
    return x if axis is None else Gather(axis=axis, grid=grid)(x)


def _cut(variable: keras.Variable, before: Cut | None, cut: Cut | None) -> np.ndarray:
    """Return this rank's part of a variable, which may be a part already."""
    value = np.asarray(keras.ops.convert_to_numpy(variable))
    if cut is None or before is not None:
        return value
    return cut.part(value)
