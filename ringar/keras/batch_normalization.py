"""Batch normalization with the statistics of the examples of all ranks.

Each rank computes, per channel, how many values it has, their mean, and the sum of their squared
deviations from that mean (M2). One all-gather gives every rank these three of all ranks. Each rank
combines them by the parallel formula of Chan, Golub and LeVeque, "Updating formulae and a pairwise
algorithm for computing sample variances" (1979), here for any number of parts at once:

    N        = sum of count_r
    mean     = sum of count_r mean_r / N
    variance = sum of (M2_r + count_r (mean_r - mean)^2) / N

The formula is exact for parts of any size, empty ones included. It does not subtract squares of
large numbers, as a variance from the sums of x and x^2 would. All ranks combine the same rows in
the same order, so that their moving averages stay equal bit by bit.

A rank's statistics affect the outputs of all ranks, so the gradients of its row are added up over
the ranks. That is the gradient of the all-gather, one reduce-scatter. In a `train_step` the loss
of a rank counts with its number of examples (`ringar.keras.share`). The gradients of its loss have
this weight in the sum, and the optimizer multiplies the sum by the weight of the row's rank, so
the sum is divided by that one. A layer of C channels on n ranks sends 12 (n-1) C bytes per rank
and step each way, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives import allgather, broadcast_object
from ringar.collectives.shares import WHOLE
from ringar.errors import NotInitializedError, UnsupportedError
from ringar.job import membership, place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import share
from ringar.sharding import lineage
from ringar.sharding.grid import Grid, resolve


@keras.saving.register_keras_serializable(package="ringar")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Normalize by the statistics of the examples of all ranks.

    In training, mean and variance are computed over the examples of all ranks, and gradients take
    that into account. Ranks may have different numbers of examples. The moving averages are the
    same on all ranks, bit by bit. On one rank, and outside training, the layer is Keras' and sends
    nothing; a model that is loaded for inference needs no `ringar.init()`.

    Where channels are split over a grid, a rank shares the statistics with the ranks of its data
    set, which have the same channels of other examples. A functional or sequential model knows
    where its channels are split. In a model that is written as a Python function, pass `grid`.

    Inputs, outputs and masks are those of `BatchNormalization`. Statistics of float16 and bfloat16
    are computed and sent in float32.

    Args:
        axis: the axis of the channels.
        process_set: the ranks that share statistics; by default all, or the data set of the grid if
            channels are split. It is not saved with the model.
        grid: the grid over which the input's channels are split; the layer's variables are then
            marked as those of this rank's part. It is not saved with the model.
        **kwargs: as for `BatchNormalization`, but for `renorm` and `synchronized`.

    Raises:
        ValueError: for `renorm` or `synchronized`, for both `process_set` and `grid`, for a closed
            grid, or for channels that are not split as the arguments say.
        UnsupportedError: with a Keras whose layer cannot be given other statistics.
        NotInitializedError: when it is called with `training=True` before `ringar.init()`.

    Example:
    ```python
    x = keras.layers.Conv2D(64, 3, use_bias=False)(x)
    x = ringar.layers.SyncBatchNormalization()(x)
    x = keras.layers.ReLU()(x)
    ```
    """

    def __init__(
        self,
        axis: int = -1,
        *,
        process_set: ProcessSet | None = None,
        grid: Grid | None = None,
        **kwargs: Any,
    ) -> None:
        if not hasattr(keras.layers.BatchNormalization, "_moments"):
            # Keras would never call the override below, and each rank would use its own statistics.
            raise UnsupportedError(
                f"SyncBatchNormalization: expected a Keras whose BatchNormalization has a method "
                f"_moments; received Keras {keras.__version__}. Install one that ringar serves."
            )
        _refuse(kwargs, "renorm", "it corrects errors of small batches, which a global batch lacks")
        _refuse(kwargs, "synchronized", "it is for tf.distribute, and these ranks are ringar's")
        # Configs of BatchNormalization may have these arguments; some releases of it do not.
        kwargs.pop("renorm_clipping", None)
        kwargs.pop("renorm_momentum", None)
        if process_set is not None and grid is not None:
            raise ValueError("`process_set` must be None with `grid`, which has its own.")
        super().__init__(axis=axis, **kwargs)
        self.process_set = process_set
        self.grid = None if grid is None else resolve(grid, type(self).__name__)
        self._has_grid_argument = grid is not None
        self._label: str | None = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Make the variables, as `BatchNormalization` does."""
        super().build(input_shape)
        if self.grid is not None:
            lineage.own(self, self.grid)

    def compute_output_spec(
        self, inputs: keras.KerasTensor, *args: Any, **kwargs: Any
    ) -> keras.KerasTensor:
        """Find out whether the channels are split, if the model has a graph."""
        axis, origin = lineage.split_axis(inputs), lineage.source(inputs)
        if axis is not None:
            self._check_axis(axis, inputs)
            if self.process_set is None and not self._has_grid_argument:
                self.grid = resolve(getattr(origin, "grid", None), type(self).__name__)
        elif self._has_grid_argument and origin is not None:
            raise ValueError(
                "`grid` must be None for channels that every rank has whole. "
                f"Received: grid={self.grid} in layer {self.name}, after {origin.name}."
            )
        return super().compute_output_spec(inputs, *args, **kwargs)

    def _check_axis(self, axis: int, inputs: keras.KerasTensor) -> None:
        if axis != self.axis % len(inputs.shape):
            raise ValueError(
                "`axis` must be that of the channels, where they are split. "
                f"Received: axis={self.axis} in layer {self.name}, and channels along axis {axis} "
                f"of {inputs.shape}"
            )

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance in training, both of shape `[C]`, for Keras' `call`."""
        ranks = self._ranks()
        if ranks.size() == 1 and not membership.is_elastic():
            return super()._moments(inputs, mask)
        row = _row(inputs, mask, self.axis % len(inputs.shape))
        if self._label is None:
            # Keras numbers layers without a name, and ranks may have made other layers before.
            self._label = broadcast_object(
                self.name, ranks.ranks[0], name="layer's name", process_set=ranks
            )
        weight = share.rows() if share.current() is not None else WHOLE
        row = _scale_gradient(row, tf.math.reciprocal_no_nan(tf.cast(weight, row.dtype)))
        rows = allgather(row, name=f"{self._label}/statistics", process_set=ranks)
        return _combine(_scale_gradient(rows, weight))

    def _ranks(self) -> ProcessSet:
        """Return the ranks that share statistics."""
        if not place.is_initialized():
            raise NotInitializedError(
                f'SyncBatchNormalization "{self.name}": expected ringar.init() before training, '
                "where statistics are those of all ranks; received none. Inference needs none."
            )
        return or_all(self.process_set if self.grid is None else self.grid.data_set)

    def get_config(self) -> dict[str, object]:
        """Return the config of `BatchNormalization` without ranks and grid."""
        config = super().get_config()
        for name in ("renorm", "renorm_clipping", "renorm_momentum", "synchronized"):
            config.pop(name, None)
        return dict(config)


def _row(x: tf.Tensor, mask: tf.Tensor | None, axis: int) -> tf.Tensor:
    """Return count, mean and M2 of this rank's values: `[1, 3, C]`, in the dtype of `x`.

    Args:
        x: of any rank, with C channels along `axis`; there may be no examples.
        mask: None, or True where values count: of the shape of `x` less the last dimension.
        axis: not negative.
    """
    channels = x.shape[axis]
    axes = [i for i in range(x.shape.rank) if i != axis]
    along = [channels if i == axis else 1 for i in range(x.shape.rank)]
    if mask is None:
        counted = None
        count = tf.fill([channels], tf.cast(tf.size(x, tf.int64) // channels, x.dtype))
    else:
        counted = tf.broadcast_to(tf.expand_dims(tf.cast(mask, tf.bool), -1), tf.shape(x))
        count = tf.reduce_sum(tf.cast(counted, x.dtype), axes)  # by channel: a mask may have them
    mean = tf.math.divide_no_nan(tf.reduce_sum(_only(counted, x), axes), count)
    # M2 contributes 0 to the gradient of the mean.
    deviation = _only(counted, x - tf.stop_gradient(tf.reshape(mean, along)))
    m2 = tf.reduce_sum(tf.square(deviation), axes)
    return tf.reshape(tf.stack([count, mean, m2]), [1, 3, channels])


def _scale_gradient(x: tf.Tensor, factor: float | tf.Tensor) -> tf.Tensor:
    """Return `x`, and its gradient times `factor`."""

    @tf.custom_gradient
    def identity(x: tf.Tensor) -> Any:
        return tf.identity(x), lambda upstream: upstream * tf.cast(factor, upstream.dtype)

    return identity(x)


def _only(counted: tf.Tensor | None, x: tf.Tensor) -> tf.Tensor:
    """Return `x`, with 0 where it is masked, even if it is NaN there."""
    return x if counted is None else tf.where(counted, x, tf.zeros([], x.dtype))


def _combine(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance `[C]` of all values, from `[ranks, 3, C]`; 0 if there are none."""
    count, means, m2s = tf.unstack(rows, axis=1)
    count = tf.stop_gradient(count)
    total = tf.reduce_sum(count, 0)
    share = tf.math.divide_no_nan(count, total)
    mean = tf.reduce_sum(share * means, 0)
    # As in `_row`: the gradient by way of this mean is 0.
    between = tf.reduce_sum(share * tf.square(means - tf.stop_gradient(mean)), 0)
    return mean, tf.math.divide_no_nan(tf.reduce_sum(m2s, 0), total) + between


def _refuse(options: dict[str, Any], name: str, why: str) -> None:
    value = options.pop(name, False)
    if value:
        raise ValueError(
            f"`{name}` must be False in SyncBatchNormalization: {why}. Received: {name}={value!r}"
        )
