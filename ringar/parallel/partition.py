"""Conversion of a one-process model to one on images that are cut over the ranks of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras

from ringar.keras.batch_normalization import SyncBatchNormalization
from ringar.keras.grouped import GroupedConv2D
from ringar.keras.locally_connected import LocallyConnected2D
from ringar.parallel.conversion import Substitute, give_parts, rebuild
from ringar.parallel.partitioned import pooling
from ringar.parallel.partitioned.convolution import PartitionedConv2D, PartitionedLocallyConnected2D
from ringar.parallel.partitioned.layer import Partitioned
from ringar.parallel.partitioned.reach import Reach
from ringar.parallel.partitioned.ways import CutPlane, GatherPlane
from ringar.sharding.grid import Grid, resolve
from ringar.sharding.pixelwise import plane_of
from ringar.sharding.planes import Plane

_K = keras.layers
_KINDS: dict[type, Callable[..., keras.layers.Layer]] = {
    _K.Conv2D: PartitionedConv2D,
    GroupedConv2D: PartitionedConv2D,
    LocallyConnected2D: PartitionedLocallyConnected2D,
    _K.MaxPooling2D: pooling.PartitionedMaxPooling2D,
    _K.AveragePooling2D: pooling.PartitionedAveragePooling2D,
    _K.GlobalAveragePooling2D: pooling.PartitionedGlobalAveragePooling2D,
    _K.GlobalMaxPooling2D: pooling.PartitionedGlobalMaxPooling2D,
}


def partition(
    model: keras.Model, grid: Grid | None = None, layers: Iterable[str] | None = None
) -> keras.Model:
    """Cut the images of a one-process model over the ranks of a grid.

    All ranks pass the same model. `Conv2D`, `LocallyConnected2D` and pooling layers work on tiles.
    A `CutPlane` comes before the first of them, and a `GatherPlane` at the outputs and before a
    layer that needs whole images. Planes of fewer rows or columns than there are tiles stay whole.
    `BatchNormalization` becomes `SyncBatchNormalization`, with the statistics of all tiles and
    model groups. If `model` is compiled, so is the result, with a distributed optimizer that has
    the state of the model's optimizer.

    `ringar.parallel.merge` is the way back. `ringar.parallel.split(partition(model), layers=names)`
    splits the units of dense layers behind the planes as well.

    Args:
        model: a functional or sequential model, built, from `keras.models.load_model` or `merge`,
            for example. It reads whole images.
        grid: the grid; by default the current one.
        layers: names of the layers to work on tiles, besides layers that treat each pixel by
            itself; by default all that can.

    Returns:
        The model of this rank, with layers of the same names.

    Raises:
        ValueError: it is another kind of model, `layers` has an unknown name, or a layer in it
            cannot work on tiles.

    Example:
    ```python
    model = keras.models.load_model("model.keras")
    grid = ringar.parallel.Grid(model=ringar.size())
    model = ringar.parallel.partition(model, grid)
    ```
    """
    work = _Partition(resolve(grid, "ringar.parallel.partition"), layers)
    part = rebuild(model, work.substitute, work.joined)
    work.check()
    give_parts(model, part, work.pairs.values(), work.grid)
    return part


class _Partition:
    """Substitute layers, one after the other, in the order of the graph.

    Attributes:
        pairs: the layers of the model, each with its substitute, by the layer's id.
    """

    def __init__(self, grid: Grid, layers: Iterable[str] | None) -> None:
        self.grid = grid
        self.pairs: dict[int, tuple[Any, Any]] = {}
        self._layer_names = None if layers is None else set(layers)
        self._cut_of: dict[int, Any] = {}

    def substitute(self, operation: keras.Operation) -> Substitute:
        """Return the function that is called in place of a layer or operation."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not isinstance(operation, keras.layers.Layer):
                return self._whole_where_needed(lambda: operation, args, kwargs)
            pair = self.pairs.get(id(operation))
            layer: Any = pair[1] if pair else self._on_tiles(operation, args[0])
            if type(layer) in _ON_TILES:
                self.pairs[id(operation)] = operation, layer
                return layer(self._cut(args[0], layer.data_format), *args[1:], **kwargs)

            def make_copy() -> keras.layers.Layer:
                if pair is None:
                    self.pairs[id(operation)] = operation, self._copy(operation, args)
                return self.pairs[id(operation)][1]

            has_windows = type(operation) in _KINDS
            return self._whole_where_needed(make_copy, args, kwargs, has_windows)

        return call

    def joined(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the whole of a tensor."""
        plane = plane_of(x)
        if plane is None:
            return x
        data_format = "channels_last" if plane.channel_axis == 3 else "channels_first"
        return GatherPlane(data_format=data_format, grid=self.grid)(x)

    def check(self) -> None:
        """Refuse names of layers that are not on tiles.

        Raises:
            ValueError: there are some.
        """
        on_tiles = {layer.name for layer, other in self.pairs.values() if type(other) in _ON_TILES}
        names = (self._layer_names or set()) - on_tiles
        if names:
            raise ValueError(
                "`layers` must be names of convolutions, local connections and poolings whose "
                f"input and output have a pixel for each of the {self.grid.tiles[0]} x "
                f"{self.grid.tiles[1]} tiles. Received: {', '.join(sorted(names))}"
            )

    def _on_tiles(
        self, operation: keras.layers.Layer, x: keras.KerasTensor
    ) -> keras.layers.Layer | None:
        """Return the layer on tiles that computes the same; None if it stays whole."""
        kind = _KINDS.get(type(operation))
        if kind is None or (
            self._layer_names is not None and operation.name not in self._layer_names
        ):
            return None
        config = operation.get_config()
        config.pop("quantization_config", None)
        layer: Any = kind(grid=self.grid, **config)
        if not isinstance(layer, Partitioned):
            return layer if plane_of(x) is not None else None
        before = plane_of(x) or self._plane(x, operation.data_format)
        if before is None or not before.is_cut:
            return None
        return layer if Reach.of(before, *layer.windows()).result.is_cut else None

    def _copy(self, operation: keras.layers.Layer, args: tuple[Any, ...]) -> keras.layers.Layer:
        """Return a layer that computes the same as `operation`."""
        kind = type(operation)
        is_shared = self.grid.data > 1 or _is_tile(args)
        if kind is keras.layers.BatchNormalization and is_shared:
            kind = SyncBatchNormalization
        return kind.from_config(operation.get_config())

    def _plane(self, x: keras.KerasTensor, data_format: str) -> Plane | None:
        channel_axis = 1 if data_format == "channels_first" else 3
        height, width = x.shape[2:] if channel_axis == 1 else x.shape[1:3]
        has_size = height is not None and width is not None
        return Plane(height, width, self.grid, channel_axis) if has_size else None

    def _cut(self, x: keras.KerasTensor, data_format: str) -> keras.KerasTensor:
        """Return a tile of a tensor, the same wherever the tensor is read."""
        if plane_of(x) is not None:
            return x
        if id(x) not in self._cut_of:
            # Keeps the tensor, too: another one may get the id of a deleted tensor.
            self._cut_of[id(x)] = x, CutPlane(data_format=data_format, grid=self.grid)(x)
        return self._cut_of[id(x)][1]

    def _whole_where_needed(
        self,
        make: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        has_windows: bool = False,
    ) -> Any:
        """Call a layer on tiles if it can work on them, otherwise on whole inputs."""
        if not has_windows:
            try:
                outputs = make()(*args, **kwargs)
                for output in keras.tree.flatten(outputs):
                    plane_of(output)
                return outputs
            except ValueError:
                if not _is_tile(args):
                    raise
        args = keras.tree.map_structure(
            lambda x: self.joined(x) if isinstance(x, keras.KerasTensor) else x, args
        )
        return make()(*args, **kwargs)


def _is_tile(args: Any) -> bool:
    tensors = [t for t in keras.tree.flatten(args) if isinstance(t, keras.KerasTensor)]
    return any(plane_of(tensor) is not None for tensor in tensors)


_ON_TILES = tuple(_KINDS.values())
