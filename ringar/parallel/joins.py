"""Layers that end a split: behind them every rank has the channels of all parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.parallel import exchange
from ringar.sharding import lineage
from ringar.sharding.grid import Grid, resolve


class Join(keras.layers.Layer):
    """End a split: the output is whole on every rank of the model group."""

    writes_channels = "whole"

    def __init__(self, *, grid: Grid | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid = resolve(grid, type(self).__name__)
        self.label = self.name

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Agree on a name: Keras numbers layers, and ranks may have made different ones."""
        self.label = self.grid.agree(self.name)

    def compute_output_spec(
        self, inputs: keras.KerasTensor, *args: Any, **kwargs: Any
    ) -> keras.KerasTensor:
        """Check the layers since the split began, if the model has a graph."""
        if getattr(inputs, "_keras_history", None) is not None:
            self._check_input(inputs)
        return super().compute_output_spec(inputs, *args, **kwargs)

    def _check_input(self, inputs: keras.KerasTensor) -> None:
        if lineage.split_axis(inputs) is None:
            raise ValueError(
                f"{type(self).__name__} must end a split. Received: an input of {self.name} that "
                "every rank has whole."
            )
        for layer in lineage.layers_within(inputs):
            lineage.own(layer, self.grid)


@keras.saving.register_keras_serializable(package="ringar")
class Gather(Join):
    """End a split: every rank gets the channels of all parts.

    Args:
        axis: the axis of the channels.
        grid: the grid; by default the current one.
        **kwargs: as for `keras.layers.Layer`.
    """

    def __init__(self, axis: int = -1, *, grid: Grid | None = None, **kwargs: Any) -> None:
        super().__init__(grid=grid, **kwargs)
        self.axis = axis

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the channels of all parts."""
        return exchange.gather(inputs, self.axis, self.grid, f"{self.label}/gather")

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Sequence[int | None]:
        """Return the shape with the channels of all parts."""
        return _channels_of_all(input_shape, self.axis, self.grid)

    def get_config(self) -> dict[str, object]:
        """Return the config with the axis."""
        return {**super().get_config(), "axis": self.axis}


@keras.saving.register_keras_serializable(package="ringar")
class Sum(Join):
    """End a split behind a layer with `writes="addend"`: add up the parts' outputs.

    Args:
        grid: the grid; by default the current one.
        **kwargs: as for `keras.layers.Layer`.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the sum."""
        return exchange.add(inputs, self.grid, f"{self.label}/sum")

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Sequence[int | None]:
        """Return the shape of the input."""
        return input_shape

    def _check_input(self, inputs: keras.KerasTensor) -> None:
        layer = lineage.producer(inputs)
        if getattr(layer, "writes_channels", None) != "addend":
            raise ValueError(
                f'Sum must follow a layer with writes="addend". Received: {self.name} behind '
                f"{layer.name if layer is not None else 'an input'}."
            )


@keras.saving.register_keras_serializable(package="ringar")
class ReturnExamples(Gather):
    """End a split that began with `reads="examples"`: every rank gets its own examples back.

    An all-to-all returns each example with the channels of all parts.

    Args:
        axis: the axis of the channels.
        grid: the grid; by default the current one.
        **kwargs: as for `keras.layers.Layer`.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's examples."""
        return exchange.return_examples(inputs, self.axis, self.grid, f"{self.label}/examples")

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Sequence[int | None]:
        """Return the shape with this rank's share of the rows."""
        rows, *rest = _channels_of_all(input_shape, self.axis, self.grid)
        return (None if rows is None else rows // self.grid.model, *rest)


def _channels_of_all(shape: Any, axis: int, grid: Grid) -> tuple[Any, ...]:
    shape = list(shape)
    shape[axis] *= grid.model
    return tuple(shape)
