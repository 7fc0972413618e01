"""Pooling on tiles: by windows, which reach into tiles of other ranks, and of the whole plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.parallel.partitioned import crossing
from ringar.parallel.partitioned.layer import OnPlane, Partitioned, windows_of
from ringar.parallel.partitioned.reach import VALID, Window
from ringar.sharding.grid import Grid


class _Pooling(Partitioned):
    """Pool with windows: a mixin for the layers of Keras."""

    pool_size: tuple[int, int]
    strides: tuple[int, int]
    padding: str
    outside: float = 0.0
    """The value outside the plane, which must not change the result."""

    def __init__(
        self, pool_size: int | Sequence[int] = 2, *, grid: Grid | None = None, **kwargs: Any
    ) -> None:
        super().__init__(pool_size, **kwargs)  # type: ignore[call-arg]
        self._set_grid(grid)

    def windows(self) -> tuple[Window, Window]:
        """Return the windows along rows and columns."""
        return windows_of(self.pool_size, self.strides, self.padding)

    def _pool(self, operation: Any, x: tf.Tensor) -> tf.Tensor:
        """Return Keras' pooling of the extended tile."""
        x = self.extended(x, self._outside(x))
        return operation(x, self.pool_size, self.strides, VALID, self.data_format)

    def _outside(self, x: tf.Tensor) -> float:
        return 0.0


@keras.saving.register_keras_serializable(package="ringar")
class PartitionedMaxPooling2D(_Pooling, keras.layers.MaxPooling2D):
    """Take maxima of images of which each rank has a tile, as `keras.layers.MaxPooling2D`.

    Each rank gets the pixels around its tile that its windows reach. Results are those of the whole
    images.

    Args:
        pool_size: as for `MaxPooling2D`.
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `MaxPooling2D`.

    Inputs and outputs are tiles: `[examples, rows, columns, channels]` of this rank.

    Raises:
        ValueError: as `ringar.layers.PartitionedConv2D`.
    """

    _whole_class = keras.layers.MaxPooling2D

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's tile of the maxima."""
        return self._pool(keras.ops.max_pool, inputs)

    def _outside(self, x: tf.Tensor) -> float:
        return float(x.dtype.min)


@keras.saving.register_keras_serializable(package="ringar")
class PartitionedAveragePooling2D(_Pooling, keras.layers.AveragePooling2D):
    """Take means of images of which each rank has a tile, as `keras.layers.AveragePooling2D`.

    Each rank gets the pixels around its tile that its windows reach. Results are those of the whole
    images; pixels outside the plane do not count.

    Args:
        pool_size: as for `AveragePooling2D`.
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `AveragePooling2D`.

    Inputs and outputs are tiles: `[examples, rows, columns, channels]` of this rank.

    Raises:
        ValueError: as `ringar.layers.PartitionedConv2D`.
    """

    _whole_class = keras.layers.AveragePooling2D

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's tile of the means."""
        means = self._pool(keras.ops.average_pool, inputs)
        return means if self._shares is None else means / tf.cast(self._shares, means.dtype)

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Compute the share of each window that lies within the plane."""
        super().build(input_shape)
        box, plane = self.reach.result.local_tile, self.plane
        sides = zip(self.windows(), box, (plane.height, plane.width), strict=True)
        inside = [np.array(window.taps_within(interval, size)) for window, interval, size in sides]
        shares = np.outer(*inside) / np.prod(self.pool_size)
        shape = (1, *shares.shape, 1) if self.image_channel_axis == 3 else (1, 1, *shares.shape)
        self._shares = None if (shares == 1).all() else shares.reshape(shape)


class _GlobalPooling(OnPlane):
    """Pool the whole plane, and so join it: a mixin for the layers of Keras."""

    keepdims: bool

    def __init__(self, *, grid: Grid | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_grid(grid)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of Keras' layer."""
        examples, channels = input_shape[0], input_shape[self.image_channel_axis]
        if not self.keepdims:
            return examples, channels
        return (
            (examples, 1, 1, channels)
            if self.image_channel_axis == 3
            else (examples, channels, 1, 1)
        )

    def _keep_axes(self, pooled: tf.Tensor) -> tf.Tensor:
        """Return `[examples, channels]` with the axes that Keras' layer would keep."""
        if not self.keepdims:
            return pooled
        rows, columns = self.plane.axes
        return tf.expand_dims(tf.expand_dims(pooled, rows), columns)


@keras.saving.register_keras_serializable(package="ringar")
class PartitionedGlobalAveragePooling2D(_GlobalPooling, keras.layers.GlobalAveragePooling2D):
    """Take the mean over the tiles of all ranks, as `keras.layers.GlobalAveragePooling2D`.

    The plane ends here: every rank of the model group has the whole result. B x C numbers are
    summed over the ranks.

    Args:
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `GlobalAveragePooling2D`.

    Inputs are tiles, `[examples, rows, columns, channels]` of this rank; outputs are
    `[examples, channels]`, the same on all ranks of a model group.

    Raises:
        ValueError: outside a grid, or for an input that is not cut into tiles.
    """

    _whole_class = keras.layers.GlobalAveragePooling2D

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the means."""
        return self._keep_axes(crossing.mean(inputs, self.plane, f"{self.label}/mean"))


@keras.saving.register_keras_serializable(package="ringar")
class PartitionedGlobalMaxPooling2D(_GlobalPooling, keras.layers.GlobalMaxPooling2D):
    """Take the maximum over the tiles of all ranks, as `keras.layers.GlobalMaxPooling2D`.

    The plane ends here: every rank of the model group has the whole result. Each rank sends
    2 x B x C numbers to each other: the maxima, and the numbers of pixels that have them.

    Args:
        grid: the grid; by default the current one. It is not saved with the model.
        **kwargs: as for `GlobalMaxPooling2D`.

    Inputs are tiles, `[examples, rows, columns, channels]` of this rank; outputs are
    `[examples, channels]`, the same on all ranks of a model group.

    Raises:
        ValueError: outside a grid, or for an input that is not cut into tiles.
    """

    _whole_class = keras.layers.GlobalMaxPooling2D

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the maxima."""
        return self._keep_axes(crossing.maximum(inputs, self.plane, f"{self.label}/maximum"))
