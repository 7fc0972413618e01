"""The bases of all layers on tiles: the agreement when they are built, the halo when called.

A partitioned layer is a Keras layer with windows, a convolution or a pooling. It exchanges the
halo, adds padding outside the plane, and calls Keras' own operation with padding "valid".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from ringar.parallel.partitioned import agreement, halo
from ringar.parallel.partitioned.reach import Reach, Window
from ringar.sharding import pixelwise
from ringar.sharding.grid import Grid, resolve
from ringar.sharding.lineage import MIXING_ACTIVATIONS
from ringar.sharding.planes import Box, Plane


class OnPlane:
    """Work on this rank's tile of a plane: a mixin for Keras layers of images.

    Attributes:
        grid: the grid over which planes are cut.
        plane: the plane that the layer reads, once it is built.
        label: the layer's name on rank 0, for collectives.
    """

    grid: Grid
    plane: Plane
    label: str
    name: str
    data_format: str

    _whole_class: ClassVar[type[keras.layers.Layer]]
    """The layer that computes the same in one process."""

    def whole_layer(self) -> keras.layers.Layer:
        """Return the layer of a one-process model, without weights."""
        config = self.get_config()  # type: ignore[attr-defined]
        return self._whole_class.from_config(config)

    @property
    def image_channel_axis(self) -> int:
        """The axis of the channels, 3 or 1."""
        return 1 if self.data_format == "channels_first" else 3

    def _set_grid(self, grid: Grid | None) -> None:
        self.grid = resolve(grid, type(self).__name__)
        # All-to-alls with uneven rows are not compiled; Keras reads this for `jit_compile="auto"`.
        self.supports_jit = False
        if getattr(self, "activity_regularizer", None) is not None:
            raise ValueError(
                f"`activity_regularizer` must be None in {pixelwise.describe(self)}: each rank "
                "would add the penalty of its tile alone. Penalize behind GatherPlane."
            )

    def _agree(self, input_shape: Sequence[int | None]) -> Plane:
        """Find the plane that the layer reads. Collective over all ranks."""
        self.label, tiles = agreement.agree(self, self.grid, input_shape, self.image_channel_axis)
        return self._plane_of(tiles)

    def _plane_of(self, tiles: Sequence[tuple[int, int]]) -> Plane:
        return agreement.plane_of_tiles(self, tiles, self.grid, self.image_channel_axis)

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Agree on the plane, then build the layer as Keras does."""
        self.plane = self._agree(input_shape)
        super().build(input_shape)  # type: ignore[misc]

    def get_build_config(self) -> None:
        """Save no config: the model that is loaded builds the layer for each rank's tile.

        Tiles of other ranks may have a row or column less than that of the rank that saves.
        """

    def _of_size(self, x: tf.Tensor, box: Box) -> tf.Tensor:
        """Return images of the size of a box; data of unknown size get it here."""
        sizes = (box.rows.size, box.columns.size)
        received = tuple(x.shape[axis] for axis in self.plane.axes)
        if any(
            size not in (None, expected) for size, expected in zip(received, sizes, strict=True)
        ):
            raise ValueError(
                f"The input of {pixelwise.describe(self)} must have the size that it was built "
                f"for, {sizes[0]} x {sizes[1]}. Received: {received[0]} x {received[1]}. Resize "
                "the images, or make a model for each size."
            )
        shape: list[int | None] = [None] * 4
        for axis, size in zip(self.plane.axes, sizes, strict=True):
            shape[axis] = size
        return tf.ensure_shape(x, shape) if None in received else x

    def compute_output_spec(
        self, inputs: keras.KerasTensor, *args: Any, **kwargs: Any
    ) -> keras.KerasTensor:
        """Check the layers since the plane began, if the model has a graph."""
        if getattr(inputs, "_keras_history", None) is not None:
            self.plane_after(pixelwise.plane_of(inputs))
        return super().compute_output_spec(inputs, *args, **kwargs)  # type: ignore[misc]

    def plane_after(self, before: Plane | None) -> Plane | None:
        """Return the plane behind the layer, for `ringar.sharding.pixelwise`."""
        if before is None:
            raise ValueError(
                f"{pixelwise.describe(self)} must read tiles of a plane. Received: an input that "
                "is not known to be one. Begin with ringar.layers.CutPlane(), or, if the data are "
                "tiles already, ringar.layers.OwnTile(size=(height, width))."
            )
        if before != self.plane:
            raise ValueError(
                f"{pixelwise.describe(self)} must get the plane that it was built for, "
                f"{self.plane}. Received: {before}. Make a layer for each size."
            )
        return None


class Partitioned(OnPlane):
    """Compute with windows that reach into the tiles of other ranks: a mixin.

    Attributes:
        reach: the pixels that each tile reads, once the layer is built.
    """

    reach: Reach
    activation: Callable[[tf.Tensor], tf.Tensor] | None = None

    def windows(self) -> tuple[Window, Window]:
        """Return the windows along rows and columns."""
        raise NotImplementedError

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Agree on the plane, and compute the pixels that each tile needs."""
        self.plane = self._agree(input_shape)
        self.reach = Reach.of(self.plane, *self.windows())
        agreement.check_cut(self, self.reach.result, "an output")
        if self.activation in MIXING_ACTIVATIONS and self.image_channel_axis == 1:
            raise ValueError(
                f"`activation` of {pixelwise.describe(self)} must treat each pixel by itself, and "
                "softmax is over the last axis. Received: data_format='channels_first'"
            )
        super(OnPlane, self).build(input_shape)  # type: ignore[misc]

    def extended(self, x: tf.Tensor, fill: float = 0.0) -> tf.Tensor:
        """Return all pixels that this rank's outputs read, with `fill` outside the plane."""
        x = self._of_size(x, self.plane.local_tile)
        x = halo.exchange(x, self.reach, f"{self.label}/halo")
        padding = [[0, 0] for _ in range(4)]
        for axis, sides in zip(self.plane.axes, self.reach.padding(self.grid.part), strict=True):
            padding[axis] = list(sides)
        if not any(sum(sides) for sides in padding):
            return x
        return tf.pad(x, padding, constant_values=tf.cast(fill, x.dtype))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of this rank's tile of the output."""
        shape = list(input_shape)
        box = self.reach.result.local_tile
        for axis, side in zip(self.plane.axes, box, strict=True):
            shape[axis] = side.size
        shape[self.image_channel_axis] = self._channels_after(shape[self.image_channel_axis])
        return tuple(shape)

    def _channels_after(self, channels: int | None) -> int | None:
        return channels

    def plane_after(self, before: Plane | None) -> Plane | None:
        """Return the plane that the layer writes."""
        super().plane_after(before)
        return self.reach.result


def windows_of(
    size: Sequence[int], strides: Sequence[int], padding: str, dilation: Sequence[int] = (1, 1)
) -> tuple[Window, Window]:
    """Return the windows of a layer with Keras' arguments."""
    sides = zip(size, strides, dilation, strict=True)
    rows, columns = (Window(*side, padding) for side in sides)
    return rows, columns
