"""The layers that begin a plane that is cut, and those that end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from ringar.parallel.partitioned import agreement, crossing
from ringar.parallel.partitioned.layer import OnPlane
from ringar.sharding import lineage, pixelwise
from ringar.sharding.examples import Digest
from ringar.sharding.grid import Grid, resolve
from ringar.sharding.planes import Plane

Images = TypeVar("Images", np.ndarray, tf.Tensor)


def tile(images: Images, grid: Grid | None = None, *, data_format: str | None = None) -> Images:
    """Return this rank's tile of images, for data of which each rank holds its tile.

    Args:
        images: an array or tensor `[examples, rows, columns, channels]`, or with channels first.
            Of an array that is mapped from a file only the tile is read.
        grid: the grid; by default the current one.
        data_format: "channels_last" or "channels_first"; by default Keras' setting.

    Returns:
        A view of `images`: the rows and columns that `ringar.layers.OwnTile` expects of this rank.

    Raises:
        ValueError: `images` does not have 4 dimensions, or has fewer rows or columns than there
            are tiles along them.

    Example:
    ```python
    images = np.load("images.npy", mmap_mode="r")
    model.fit(ringar.parallel.tile(images), labels)
    ```
    """
    grid = resolve(grid, "ringar.parallel.tile")
    first = (data_format or keras.config.image_data_format()) == "channels_first"
    shape = tuple(images.shape)
    if len(shape) != 4:
        raise ValueError(f"`images` must have 4 dimensions. Received: shape {shape}")
    plane = Plane(*(shape[2:] if first else shape[1:3]), grid, 1 if first else 3)
    if not plane.is_cut:
        raise ValueError(
            "`images` must have at least as many rows and columns as there are tiles along them, "
            f"{grid.tiles[0]} x {grid.tiles[1]}. Received: {plane.height} x {plane.width}"
        )
    index = [slice(None)] * 4
    for axis, side in zip(plane.axes, plane.local_tile, strict=True):
        index[axis] = side.slice
    return images[tuple(index)]


class _Way(OnPlane, keras.layers.Layer):
    """Begin or end a plane."""

    _whole_class = keras.layers.Identity

    def __init__(
        self, *, data_format: str | None = None, grid: Grid | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.data_format = keras.config.image_data_format() if data_format is None else data_format
        if self.data_format not in ("channels_last", "channels_first"):
            raise ValueError(
                '`data_format` must be "channels_last" or "channels_first". '
                f"Received: data_format={data_format!r}"
            )
        self._set_grid(grid)

    def get_config(self) -> dict[str, object]:
        """Return the config without the grid."""
        return {**super().get_config(), "data_format": self.data_format}

    def whole_layer(self) -> keras.layers.Layer:
        """Return an `Identity`: in one process nothing is cut."""
        return keras.layers.Identity(name=self.name, dtype=self.dtype_policy.name)

    def _with_sides(self, shape: Sequence[int | None], *sides: int) -> tuple[int | None, ...]:
        sizes = list(shape)
        for axis, size in zip(self.plane.axes, sides, strict=True):
            sizes[axis] = size
        return tuple(sizes)


@keras.saving.register_keras_serializable(package="ringar")
class CutPlane(_Way):
    """Begin a plane: each rank keeps its tile of images that every rank has whole.

    The grid has the tiles: strips of rows for `Grid(model=4)`, tiles for `Grid(model=(2, 2))`. If
    rows or columns cannot be dealt out evenly, the first tiles have one more.

    Args:
        data_format: "channels_last" or "channels_first"; by default Keras' setting.
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `keras.layers.Layer`.

    Nothing is sent forward. Backward, an input that has a gradient gets it by an all-gather.

    Raises:
        ValueError: outside a grid, or for images of fewer rows or columns than there are tiles
            along them.
    """

    def _plane_of(self, tiles: Sequence[tuple[int, int]]) -> Plane:
        for part, size in enumerate(tiles):
            if size != tiles[0]:
                raise ValueError(
                    f"{pixelwise.describe(self)} must get the same whole images on every rank of a "
                    f"model group. Received: images of {tiles[0]} for part 0, of {size} for part "
                    f"{part}. For tiles use ringar.layers.OwnTile."
                )
        plane = Plane(*tiles[0], self.grid, self.image_channel_axis)
        agreement.check_cut(self, plane, "images")
        return plane

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Agree on the plane."""
        super().build(input_shape)
        self.digest = Digest()

    _reads_model_input = False
    digest: Digest | None = None

    def compute_output_spec(
        self, inputs: keras.KerasTensor, *args: Any, **kwargs: Any
    ) -> keras.KerasTensor:
        """Check the input, and note whether it is the model's, if the model has a graph."""
        has_graph = getattr(inputs, "_keras_history", None) is not None
        if has_graph and lineage.split_axis(inputs) is not None:
            raise ValueError(
                f"{pixelwise.describe(self)} must read an input that every rank has whole. "
                "Received: channels that are split. End the split with ringar.layers.Gather()."
            )
        self._reads_model_input = lineage.source(inputs) is None
        return super().compute_output_spec(inputs, *args, **kwargs)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's tile."""
        inputs = self._of_size(inputs, self.plane.bounds)
        if self._reads_model_input and self.digest is not None and self.grid.model > 1:
            self.digest.take(inputs)
        return crossing.cut(inputs, self.plane, f"{self.label}/cut")

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of this rank's tile."""
        return self._with_sides(input_shape, *(side.size for side in self.plane.local_tile))

    def plane_after(self, before: Plane | None) -> Plane | None:
        """Return the plane that begins."""
        if before is not None:
            raise ValueError(
                f"{pixelwise.describe(self)} must read whole images. Received: a tile of {before}."
            )
        return self.plane


@keras.saving.register_keras_serializable(package="ringar")
class OwnTile(_Way):
    """Begin a plane with data that are tiles: each rank is given its own.

    No rank ever has whole images. `ringar.parallel.tile` cuts arrays as this layer expects. Labels
    are the same on all ranks of a model group.

    Args:
        size: the rows and columns of the whole images.
        data_format: "channels_last" or "channels_first"; by default Keras' setting.
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `keras.layers.Layer`.

    Raises:
        ValueError: outside a grid, or for an input that is not this rank's tile of such images.

    Example:
    ```python
    strip = keras.Input(ringar.parallel.tile(images).shape[1:])
    x = ringar.layers.OwnTile(size=images.shape[1:3])(strip)
    ```
    """

    def __init__(
        self,
        size: Sequence[int],
        *,
        data_format: str | None = None,
        grid: Grid | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_format=data_format, grid=grid, **kwargs)
        if len(tuple(size)) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
            raise ValueError(f"`size` must be two positive whole numbers. Received: size={size!r}")
        self.size = (size[0], size[1])

    def _plane_of(self, tiles: Sequence[tuple[int, int]]) -> Plane:
        plane = Plane(*self.size, self.grid, self.image_channel_axis)
        agreement.check_tiles(self, plane, tiles)
        return plane

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the input."""
        return tf.identity(self._of_size(inputs, self.plane.local_tile))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of the input."""
        return tuple(input_shape)

    def whole_shape(self, shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of whole images, given that of a tile."""
        return self._with_sides(shape, *self.size)

    def plane_after(self, before: Plane | None) -> Plane | None:
        """Return the plane that begins."""
        if before is not None:
            raise ValueError(
                f"{pixelwise.describe(self)} must begin a plane. Received: a tile of {before}."
            )
        return self.plane

    def get_config(self) -> dict[str, object]:
        """Return the config with the size."""
        return {**super().get_config(), "size": self.size}


@keras.saving.register_keras_serializable(package="ringar")
class GatherPlane(_Way):
    """End a plane: every rank gets the whole images, by an all-gather of tiles.

    Behind it all ranks of a model group compute the same, as behind `ringar.layers.Gather`.
    Backward nothing is sent.

    Args:
        data_format: "channels_last" or "channels_first"; by default Keras' setting.
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `keras.layers.Layer`.

    Raises:
        ValueError: outside a grid, or for an input that is not cut into tiles.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the whole images."""
        return crossing.gather(inputs, self.plane, f"{self.label}/gather")

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of whole images."""
        return self._with_sides(input_shape, self.plane.height, self.plane.width)


@keras.saving.register_keras_serializable(package="ringar")
class FlattenPlane(_Way):
    """End a plane, and begin a split: each rank's tile becomes its channels for `SplitDense`.

    Nothing is sent. `SplitDense(units, reads="own", writes="addend")` behind it holds the weights
    of this rank's tile alone, and `Sum` adds up the ranks' outputs: a dense layer that reads the
    whole plane, although each rank has only its tile. `reads="all"` gathers all tiles instead.

    The parts of a split are equal, and in the order of one process' `Flatten`. So the plane must be
    cut into strips, with channels last, and the number of strips divide its rows; otherwise use
    `GatherPlane`.

    Args:
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `keras.layers.Layer`.

    Inputs are tiles, `[examples, rows, columns, channels]`; outputs `[examples, numbers]`.

    Raises:
        ValueError: outside a grid, for an input that is not cut into tiles, or for tiles that are
            no parts of a split.
    """

    writes_channels = "own"
    channel_axis = -1

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Agree on the plane, and check that it can become a split."""
        super().build(input_shape)
        rows, columns = self.grid.tiles
        if columns > 1 or self.plane.height % rows or self.data_format != "channels_last":
            raise ValueError(
                f"{pixelwise.describe(self)} must get strips of equally many rows, with channels "
                f"last. Received: a plane of {self.plane}, data_format={self.data_format!r}. Use "
                'ringar.layers.GatherPlane(), Flatten and SplitDense(reads="whole").'
            )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's numbers."""
        tile = crossing.part(inputs, self.plane)
        return tf.reshape(tile, [tf.shape(tile)[0], self.compute_output_shape(tile.shape)[1]])

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape with the number of this rank's channels."""
        tile = self.plane.local_tile
        channels = input_shape[3]
        return input_shape[0], None if channels is None else tile.area * channels

    def whole_layer(self) -> keras.layers.Layer:
        """Return a `Flatten`."""
        return keras.layers.Flatten(name=self.name, dtype=self.dtype_policy.name)
