"""Local response normalization: each channel is divided by the energy of its neighbors.

Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural networks"
(2012), section 3.3. With N channels, the activity a_i of channel i at one position becomes

    b_i = a_i / s_i^beta,    s_i = k + alpha * sum of a_j^2 over max(0, i-r) <= j <= min(N-1, i+r)

where the paper has k = 2, r = n/2 = 2, alpha = 1e-4 and beta = 0.75. Channel j is in the window of
i if i is in the window of j, so the gradient has the same window, with an upstream gradient g:

    dL/da_i = g_i / s_i^beta - 2 alpha beta a_i * sum of g_j b_j / s_j over the window of i

`tf.nn.local_response_normalization` has the same parameters, but no groups. It takes about twice as
long, because its gradient computes the power beta again for each neighbor.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="ringar")
class LocalResponseNormalization(keras.layers.Layer):
    """Divide each channel by a power of the energy of its neighbors, at each position.

    If the layer's dtype is float16 or bfloat16, it computes in float32.

    Args:
        depth_radius: r, the number of neighbors on either side.
        bias: k, above 0.
        alpha: multiplies the plain sum of squares, not their mean.
        beta: the power.
        groups: the number of groups of channels. Only channels of the same group are neighbors: a
            layer on the channels of one of M parts corresponds to one with `groups=M` on all.

    Input and output shape: `(batch, ..., channels)`.

    Raises:
        ValueError: for an argument out of range, or channels that `groups` does not divide.
    """

    def __init__(
        self,
        depth_radius: int = 2,
        bias: float = 2.0,
        alpha: float = 1e-4,
        beta: float = 0.75,
        groups: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check("depth_radius", depth_radius, numbers.Integral, least=0)
        _check("bias", bias, numbers.Real)
        _check("alpha", alpha, numbers.Real, least=0)
        _check("beta", beta, numbers.Real, least=0)
        _check("groups", groups, numbers.Integral, least=1)
        self.depth_radius, self.groups = int(depth_radius), int(groups)
        self.bias, self.alpha, self.beta = float(bias), float(alpha), float(beta)

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Check the number of channels."""
        if len(input_shape) < 2 or input_shape[-1] is None:
            raise ValueError(
                "The input must have an axis for the batch, and a last axis of channels, whose "
                f"number is known. Received: input_shape={tuple(input_shape)}"
            )
        if input_shape[-1] % self.groups:
            raise ValueError(
                "The number of channels must be divisible by `groups`. "
                f"Received: input_shape={tuple(input_shape)}, groups={self.groups}"
            )
        self.input_spec = keras.layers.InputSpec(ndim=len(input_shape), axes={-1: input_shape[-1]})
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the normalized channels, in the layer's dtype."""
        x = tf.convert_to_tensor(inputs)
        precise = x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
        return tf.cast(self._normalize(precise), x.dtype)

    def _normalize(self, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def normalize(x: tf.Tensor) -> Any:
            scale, energy = self._scale(x)

            def backward(upstream: tf.Tensor) -> tf.Tensor:
                around = self._window(upstream * x * scale / energy)
                return upstream * scale - (2 * self.alpha * self.beta) * x * around

            return x * scale, backward

        return normalize(x)

    def _scale(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return `s^-beta` and `s`."""
        energy = self.bias + self.alpha * self._window(tf.square(x))
        # The paper's power by two square roots: a third of the time of `pow`.
        scale = tf.math.rsqrt(energy * tf.sqrt(energy)) if self.beta == 0.75 else None
        return tf.pow(energy, -self.beta) if scale is None else scale, energy

    def _window(self, x: tf.Tensor) -> tf.Tensor:
        """Return the sums over each channel's neighbors and itself, within its group.

        The sum of shifted views lets XLA fuse it with neighboring ops. A product with a band matrix
        would be as fast on a CPU, but rounded to 10 bits on GPUs with TF32.
        """
        count = x.shape[-1] // self.groups
        radius = min(self.depth_radius, count - 1)
        shape = tf.shape(x)
        if self.groups > 1:
            x = tf.reshape(x, tf.concat([shape[:-1], [self.groups, count]], 0))
        padded = tf.pad(x, [[0, 0]] * (len(x.shape) - 1) + [[radius, radius]])
        total = tf.add_n([padded[..., i : i + count] for i in range(2 * radius + 1)])
        return tf.reshape(total, shape) if self.groups > 1 else total

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Sequence[int | None]:
        """Return the shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, object]:
        """Return the arguments."""
        return {
            **super().get_config(),
            "depth_radius": self.depth_radius,
            "bias": self.bias,
            "alpha": self.alpha,
            "beta": self.beta,
            "groups": self.groups,
        }


def _check(name: str, value: Any, kind: type, *, least: float | None = None) -> None:
    """Raise ValueError unless `value` is a `kind` and at least `least`; None: above 0."""
    good = isinstance(value, kind) and not isinstance(value, bool)
    # Written so that NaN is out of range.
    if good and value < float("inf") and (value > 0 if least is None else value >= least):
        return
    noun = "a whole number" if kind is numbers.Integral else "a number"
    bound = "above 0" if least is None else f"of at least {least}"
    raise ValueError(f"`{name}` must be {noun} {bound}. Received: {name}={value!r}")
