"""Layers of which each rank of a model group holds a part; `joins` end a split.

Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural networks"
(2012), put half of the kernels of each layer on each of two GPUs and let the GPUs communicate only
in certain layers. Here a layer of F kernels on a grid of M parts holds F/M of them. `reads` names
their input:

    reads="own"        the channels of this rank's kernels in the previous layer. Nothing is sent.
                       With M parts the whole layer is a convolution of M groups
    reads="all"        the channels of all parts, which are gathered
    reads="whole"      an input that every rank has whole: images, or the output of a join
    reads="examples"   an input that every rank has whole, for examples of its own. The examples of
                       all ranks are gathered, and the layers up to `ReturnExamples` compute for all
                       of them (Krizhevsky, "One weird trick for parallelizing convolutional neural
                       networks", 2014)

`writes` names their output: their own channels, or, if the kernels are cut along their inputs
(`writes="addend"`), one addend of all channels, which `Sum` completes.

`ringar.parallel.exchange` describes the communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.keras.grouped import GroupedConv2D, GroupedDense
from ringar.parallel import exchange
from ringar.parallel.initial import PartOf
from ringar.sharding import cut, lineage
from ringar.sharding.examples import Digest
from ringar.sharding.grid import Grid, resolve
from ringar.sharding.part_files import SavesPart

READS = ("own", "all", "whole", "examples")
WRITES = ("own", "addend")


class _Split(SavesPart):
    """Split a Keras layer with kernels over the parts of a grid: a mixin."""

    grid: Grid
    reads: str
    writes: str
    groups: int
    kernels_argument: str
    """The argument of Keras' layer for the number of kernels."""

    def _share(self, kernels: int, writes: str, grid: Grid) -> int:
        """Return the number of kernels, or of parts of kernels, that this rank holds."""
        return kernels if writes == "addend" else grid.share(kernels, self.kernels_argument)

    def _set_split(
        self, kernels: int, reads: str, writes: str, groups: int | None, grid: Grid
    ) -> None:
        for name, value, choices in (("reads", reads, READS), ("writes", writes, WRITES)):
            if value not in choices:
                texts = ", ".join(f'"{choice}"' for choice in choices)
                raise ValueError(f"`{name}` must be one of {texts}. Received: {name}={value!r}")
        if writes == "addend" and reads != "own":
            raise ValueError(
                '`writes="addend"` must go with reads="own": kernels that are cut along their '
                f"inputs read this rank's channels. Received: reads={reads!r}"
            )
        activation = getattr(self, "activation", None)
        if writes == "addend" and activation is not keras.activations.linear:
            raise ValueError(
                '`activation` must be None with writes="addend"; put it behind the Sum. '
                f"Received: activation={keras.activations.serialize(activation)!r}"
            )
        if activation in lineage.MIXING_ACTIVATIONS and grid.model > 1:
            raise ValueError(
                "`activation` must treat each channel by itself; put another one behind the "
                f"Gather. Received: activation={keras.activations.serialize(activation)!r}"
            )
        self.reads, self.writes, self.grid = reads, writes, grid
        self.digest: Digest | None = None
        self.label = self.name
        self._input_channels = 0
        self._set_groups(groups, kernels)
        self.whole_kernels, self.groups = kernels, self.local_groups

    @property
    def writes_channels(self) -> str:
        """The kind of channels behind the layer, for `ringar.sharding.lineage`."""
        return self.writes

    @property
    def channel_axis(self) -> int:
        """The axis of the channels."""
        return 1 if getattr(self, "data_format", "channels_last") == "channels_first" else -1

    def _set_groups(self, groups: int | None, kernels: int) -> None:
        """Set the number of groups of the whole layer and of this rank's part."""
        parts = self.grid.model
        if self.writes == "addend":
            count = 1
            if groups not in (None, 1):
                raise ValueError(
                    f'`groups` must be 1 with writes="addend". Received: groups={groups}'
                )
        else:
            count = groups or (parts if self.reads == "own" else 1)
        if self.reads == "own" and self.writes == "own" and count % parts:
            raise ValueError(
                '`groups` must be divisible by the number of parts with reads="own". '
                f"Received: groups={count}, model={parts}"
            )
        if count % parts and parts % count:
            raise ValueError(
                "`groups` must divide the number of parts, or be divisible by it. "
                f"Received: groups={count}, model={parts}"
            )
        if kernels % count:
            raise ValueError(
                "The number of kernels must be divisible by `groups`. "
                f"Received: {kernels} kernels, groups={count}"
            )
        self.whole_groups = count
        self.local_groups = 1 if self.writes == "addend" else max(1, count // parts)

    def _whole_channels(self, channels: int) -> int:
        """Return the number of channels that the whole layer reads, if this rank has `channels`."""
        return channels * (self.grid.model if self.reads in ("own", "all") else 1)

    def _channels_read(self) -> slice:
        """Return the channels that this rank's kernels read, of those after the exchange."""
        if self.reads == "own" or self.whole_groups == 1:
            return slice(None)
        group_size = self._whole_channels(self._input_channels) // self.whole_groups
        start = self.grid.part * self.whole_groups // self.grid.model * group_size
        return slice(start, start + group_size * self.local_groups)

    def _build_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of the kernels' input."""
        self.label = self.grid.agree(self.name)
        shape = list(input_shape)
        channels = shape[self.channel_axis]
        if channels is None:
            raise ValueError(f"The number of channels must be known. Received: shape {input_shape}")
        self._input_channels = channels
        total = self._whole_channels(channels)
        if total % self.whole_groups:
            raise ValueError(
                "The number of channels must be divisible by `groups`. "
                f"Received: {total} channels, groups={self.whole_groups}"
            )
        if self.reads != "own":
            channels = total
        shape[self.channel_axis] = len(range(channels)[self._channels_read()])
        if self.reads == "whole":
            self.digest = Digest()
        return tuple(shape)

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Make this rank's kernels."""
        super().build(self._build_shape(input_shape))  # type: ignore[misc]
        self.input_spec = None  # Keras' spec is that of the kernels' input, after the exchange

    def get_config(self) -> dict[str, object]:
        """Return the config of the whole layer, without the grid."""
        return {
            **super().get_config(),  # type: ignore[misc]
            self.kernels_argument: self.whole_kernels,
            "reads": self.reads,
            "writes": self.writes,
            "groups": self.whole_groups,
        }

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        """Make a variable of this rank's part."""
        axis = {"own": {"kernel": -1, "bias": 0}, "addend": {"kernel": -2}}[self.writes].get(
            kwargs["name"]
        )
        if axis is None:
            return super().add_weight(*args, **kwargs)  # type: ignore[misc]
        initializer = keras.initializers.get(kwargs["initializer"])
        kwargs["initializer"] = PartOf(initializer, axis, self.grid)
        variable = super().add_weight(*args, **kwargs)  # type: ignore[misc]
        cut.mark(variable, cut.Cut(axis % len(variable.shape), self.grid))
        return variable

    def read(self, x: tf.Tensor) -> tf.Tensor:
        """Return the input of this rank's kernels, after the exchange."""
        if self.reads == "all":
            x = exchange.channels(x, self.channel_axis, self.grid, f"{self.label}/channels")
        elif self.reads == "examples":
            x = exchange.examples(x, self.grid, f"{self.label}/examples")
        elif self.reads == "whole" and self.grid.model > 1:
            if self.digest is not None and self._reads_model_input:
                self.digest.take(x)
            x = exchange.replica(x, self.grid, f"{self.label}/whole")
        channels = self._channels_read()
        if channels != slice(None):
            x = x[:, channels] if self.channel_axis == 1 else x[..., channels]
        return x

    def split_bias(self, bias: keras.Variable) -> tf.Tensor:
        """Return this part's share of the bias of an addend: the shares add up to the bias."""
        if self.writes != "addend" or self.grid.model == 1:
            return bias
        return exchange.with_gradient(
            tf.convert_to_tensor(bias),
            lambda value: value / tf.cast(self.grid.model, value.dtype),
            lambda upstream: upstream,
        )

    _reads_model_input = False

    def compute_output_spec(
        self, inputs: keras.KerasTensor, *args: Any, **kwargs: Any
    ) -> keras.KerasTensor:
        """Check the layers since the split began, if the model has a graph."""
        axis = lineage.split_axis(inputs)
        if getattr(inputs, "_keras_history", None) is not None:
            self._check_input(inputs, axis)
        return super().compute_output_spec(inputs, *args, **kwargs)  # type: ignore[misc]

    def _check_input(self, inputs: keras.KerasTensor, axis: int | None) -> None:
        wants_split = self.reads in ("own", "all")
        if wants_split and axis is None:
            raise ValueError(
                f'`reads="{self.reads}"` must be used on channels that are split. Received: an '
                f'input of layer {self.name} that every rank has whole. Use reads="whole", or '
                'reads="examples" if the ranks have different examples.'
            )
        if not wants_split and axis is not None:
            raise ValueError(
                f'`reads="{self.reads}"` must be used on an input that every rank has whole. '
                f"Received: an input of layer {self.name} that is split. "
                'Use reads="own" or reads="all".'
            )
        if axis is not None and axis != self.channel_axis % len(inputs.shape):
            raise ValueError(
                f"The channels of layer {self.name} must be along axis {self.channel_axis}. "
                f"Received: channels along axis {axis} of {inputs.shape}"
            )
        for layer in lineage.layers_within(inputs) if axis is not None else ():
            lineage.own(layer, self.grid)
        self._reads_model_input = axis is None and lineage.source(inputs) is None


@keras.saving.register_keras_serializable(package="ringar")
class SplitConv2D(_Split, GroupedConv2D):
    """Convolve as `keras.layers.Conv2D`, each rank of a model group with a part of the kernels.

    Args:
        filters: the number of kernels of the whole layer, which the number of parts divides.
        kernel_size: as for `Conv2D`.
        reads: "own", the channels of this rank's kernels in the previous layer; "all", the channels
            of all parts; "whole", an input that every rank has whole; "examples", an input that
            every rank has whole, but for different examples: those of all ranks are gathered.
        writes: "own", or "addend" for kernels that are cut along their inputs.
        groups: the groups of the whole layer; by default the number of parts with `reads="own"`,
            else 1.
        grid: the grid; by default the current one.
        **kwargs: as for `Conv2D`.

    Input and output shapes are those of `Conv2D`, of this rank's channels.

    Raises:
        ValueError: outside a grid, for kernels or groups that the parts do not divide, or for an
            input that does not match `reads`.
    """

    kernels_argument = "filters"

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        *,
        reads: str = "all",
        writes: str = "own",
        groups: int | None = None,
        grid: Grid | None = None,
        **kwargs: Any,
    ) -> None:
        grid = resolve(grid, type(self).__name__)
        super().__init__(self._share(filters, writes, grid), kernel_size, **kwargs)
        self._set_split(filters, reads, writes, groups, grid)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's channels."""
        outputs = self.convolution_op(self.read(inputs), self.kernel)
        if self.bias is not None:
            shape = [1] * 4
            shape[self.channel_axis] = self.filters
            outputs = outputs + tf.reshape(self.split_bias(self.bias), shape)
        return self.activation(outputs) if self.activation is not None else outputs

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Sequence[int | None]:
        """Return the shape of `Conv2D`; with `reads="examples"`, for the examples of all ranks."""
        shape = super().compute_output_shape(input_shape)
        return _rows_of_all(shape, self)


@keras.saving.register_keras_serializable(package="ringar")
class SplitDense(_Split, GroupedDense):
    """Connect as `keras.layers.Dense`, each rank of a model group with a part of the units.

    Args:
        units: the number of units of the whole layer, which the number of parts divides.
        reads: as for `ringar.layers.SplitConv2D`.
        writes: as for `ringar.layers.SplitConv2D`.
        groups: as for `ringar.layers.SplitConv2D`.
        grid: the grid; by default the current one.
        **kwargs: as for `Dense`.

    Input and output shapes are those of `Dense`, of this rank's units. Channels of images that are
    flattened before must be contiguous: `keras.layers.Permute((3, 1, 2))`, then `Flatten`.

    Raises:
        ValueError: outside a grid, for units or groups that the parts do not divide, or for an
            input that does not match `reads`.
    """

    kernels_argument = "units"

    def __init__(
        self,
        units: int,
        *,
        reads: str = "all",
        writes: str = "own",
        groups: int | None = None,
        grid: Grid | None = None,
        **kwargs: Any,
    ) -> None:
        grid = resolve(grid, type(self).__name__)
        super().__init__(self._share(units, writes, grid), **kwargs)
        self._set_split(units, reads, writes, groups, grid)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return this rank's units."""
        outputs = self.multiply(self.read(inputs))
        if self.bias is not None:
            outputs = outputs + tf.cast(self.split_bias(self.bias), outputs.dtype)
        return self.activation(outputs) if self.activation is not None else outputs

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Sequence[int | None]:
        """Return the shape of `Dense`; with `reads="examples"`, for the examples of all ranks."""
        return _rows_of_all((*input_shape[:-1], self.units), self)


def _rows_of_all(shape: Sequence[int | None], layer: _Split) -> tuple[int | None, ...]:
    rows, *rest = shape
    times = layer.grid.model if layer.reads == "examples" else 1
    return (None if rows is None else rows * times, *rest)
