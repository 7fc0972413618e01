"""Convolutions on tiles: with one kernel for all pixels, and with one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.keras.grouped import GroupedConv2D
from ringar.keras.locally_connected import LocallyConnected2D
from ringar.parallel.exchange import scale_gradient
from ringar.parallel.initial import TileOf
from ringar.parallel.partitioned.layer import Partitioned, windows_of
from ringar.parallel.partitioned.reach import VALID, Window
from ringar.sharding import cut
from ringar.sharding.grid import Grid
from ringar.sharding.part_files import SavesPart


class _Convolution(Partitioned):
    """Apply kernels at each pixel: a mixin for layers with kernels."""

    kernel_size: tuple[int, int]
    strides: tuple[int, int]
    padding: str
    dilation_rate: tuple[int, int]

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        *,
        grid: Grid | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(filters, kernel_size, **kwargs)  # type: ignore[call-arg]
        self._set_grid(grid)

    def windows(self) -> tuple[Window, Window]:
        """Return the windows along rows and columns."""
        return windows_of(self.kernel_size, self.strides, self.padding, self.dilation_rate)


@keras.saving.register_keras_serializable(package="ringar")
class PartitionedConv2D(_Convolution, GroupedConv2D):
    """Convolve images of which each rank of a model group has a tile, as `keras.layers.Conv2D`.

    Before the convolution each rank gets the pixels around its tile that its kernels reach, from
    the ranks that have them. Every rank has all kernels, and computes its tile of the output. All
    results are those of `Conv2D` on the whole images, for any strides, dilation and padding; tiles
    may be thinner than the kernels reach.

    Args:
        filters: as for `Conv2D`.
        kernel_size: as for `Conv2D`.
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `Conv2D`, but for `activity_regularizer`.

    Inputs and outputs are tiles: `[examples, rows, columns, channels]` of this rank.

    Raises:
        ValueError: outside a grid; when the model is built, on all ranks: for an input that is not
            cut into tiles, an output that has fewer rows or columns than there are tiles along
            them, or ranks that have made different layers.

    Example:
    ```python
    grid = ringar.parallel.Grid(model=ringar.size())
    images = keras.Input((512, 512, 3))
    x = ringar.layers.CutPlane()(images)
    x = ringar.layers.PartitionedConv2D(16, 3, padding="same", activation="relu")(x)
    x = ringar.layers.PartitionedGlobalAveragePooling2D()(x)
    model = keras.Model(images, keras.layers.Dense(10)(x))
    ```

    Source: Dean et al., "Large scale distributed deep networks" (2012), section 3.
    """

    _whole_class = keras.layers.Conv2D

    def convolution_op(self, inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
        """Return the convolution of the extended tile, without bias and activation."""
        return super().convolution_op(self.extended(inputs), kernel)

    def convolve(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Return the convolution of one group of channels, which are padded."""
        return keras.ops.conv(
            inputs,
            kernel,
            strides=list(self.strides),
            padding=VALID,
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )

    def _channels_after(self, channels: int | None) -> int | None:
        return int(self.filters)


@keras.saving.register_keras_serializable(package="ringar")
class PartitionedLocallyConnected2D(_Convolution, SavesPart, LocallyConnected2D):
    """Compute `LocallyConnected2D` where each rank of a model group has a tile of the images.

    Each rank has the weights of its tile of the output, and no others. They are cut as the output
    is, and trained where they are: nothing is exchanged for them within a model group.

    Args:
        filters: the number of kernels at each pixel.
        kernel_size: as for `LocallyConnected2D`.
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `LocallyConnected2D`, but for `activity_regularizer`.

    Inputs and outputs are tiles: `[examples, rows, columns, channels]` of this rank.

    Raises:
        ValueError: as `PartitionedConv2D`.
    """

    _whole_class = LocallyConnected2D

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        """Make the weights of this rank's tile of the output."""
        if kwargs.get("name") not in ("kernel", "bias"):
            return super().add_weight(*args, **kwargs)
        rows, columns, *rest = kwargs["shape"]
        tile_cut = cut.TileCut(0, self.grid)
        size = (*self.whole_size(rows, columns), *rest)
        kwargs["initializer"] = TileOf(kwargs["initializer"], size, tile_cut)
        variable = super().add_weight(*args, **kwargs)
        cut.mark(variable, tile_cut)
        return variable

    def whole_size(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the rows and columns of the plane that all ranks write."""
        return self.reach.result.height, self.reach.result.width

    def padded(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the pixels that this rank's outputs read, with zeros outside the plane."""
        return self.extended(inputs)

    def weight(self, variable: keras.Variable) -> tf.Tensor:
        """Return a weight that is cut; `halo` explains the factor of its gradient."""
        value = tf.cast(tf.convert_to_tensor(variable), self.compute_dtype)
        return scale_gradient(value, 1 / self.grid.model)

    def _channels_after(self, channels: int | None) -> int | None:
        return int(self.filters)
