"""Keras' SimpleRNN and GRU, with a native kernel in place of a loop of TensorFlow ops.

A layer here is the Keras layer in everything but its inner loop: arguments, weights, config, states,
masks. So weights load from one into the other, and what Keras does around the loop (initial and
stateful states, dropout of the inputs, `go_backwards`) remains Keras'.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ringar import computation
from ringar.parallel.scan import recurrent
from ringar.parallel.scan.chain import CHOSEN, WHOLE, Way, levels_of

#: In the order of `Activation` in tf_ops/scan/recurrent.h.
ACTIVATIONS = ("linear", "tanh", "sigmoid", "relu", "hard_sigmoid")

_ARGUMENTS = """
    Args:
        units, activation, ...: as those of the Keras layer. An activation is one of "tanh",
            "sigmoid", "relu", "hard_sigmoid" and "linear" (None).
        backward: how gradients go back through the steps. "serial" carries the vectors of the batch
            through the chain, "scan" takes the parallel scan, a number of levels its hybrid; "auto"
            chooses by a cost model of steps, units, batch and threads.
        threads: how many of them to use; as many as TensorFlow's intra-op pool has if None.

    Input and output shapes, masks, `return_sequences`, `return_state`, `stateful` and `go_backwards`
    are those of the Keras layer. float16 and bfloat16 are computed in float32 within. Gradients of
    gradients are not supported. With `recurrent_dropout`, training runs through Keras' own loop.

    Raises:
        ValueError: for another activation, or a `backward` or `threads` out of range.
"""


class _ScanRecurrent:
    """What both layers have in common, before the Keras layer in the order of bases."""

    def __init__(
        self,
        units: int,
        *args: Any,
        backward: str | int = "auto",
        threads: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, *args, **kwargs)
        self.backward, self.threads = backward, threads
        self._levels = _levels(backward)
        computation.usable_threads(threads)
        self._cell_kind = self._kind()

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> Any:
        """Runs all steps; called by ``keras.layers.RNN.call``."""
        if training and self.cell.recurrent_dropout:
            return super().inner_loop(sequences, initial_state, mask, training=training)
        state = initial_state[0] if isinstance(initial_state, (list, tuple)) else initial_state
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        if mask is not None:
            mask = tf.cast(mask, tf.bool)
        if self.go_backwards:
            sequences = tf.reverse(sequences, [1])
            mask = None if mask is None else tf.reverse(mask, [1])
        sequence = self._sequence(sequences, state, mask, training)
        way = Way(self._levels, computation.usable_threads(self.threads))
        if not self.return_sequences:
            last = recurrent.last_state(sequence, way)
            shown = self._shown(last, mask)
            return shown, shown[:, None], [last]
        states = recurrent.states(sequence, way)
        outputs = self._shown_each(states, mask)
        return outputs[:, -1], outputs, [states[:, -1]]

    def get_config(self) -> dict[str, Any]:
        """The Keras layer's config, `backward` and `threads`."""
        return {**super().get_config(), "backward": self.backward, "threads": self.threads}

    def _sequence(
        self, inputs: tf.Tensor, state: tf.Tensor, mask: tf.Tensor | None, training: bool
    ) -> recurrent.Sequence:
        projected, bias = self._project(self._drop(inputs) if training else [inputs])
        tensors = (projected, state, tf.convert_to_tensor(self.cell.recurrent_kernel), bias)
        dtype = tf.float64 if projected.dtype == tf.float64 else tf.float32
        cast = [None if tensor is None else tf.cast(tensor, dtype) for tensor in tensors]
        return recurrent.Sequence(self._cell_kind, *cast, mask)

    def _drop(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """The inputs without what dropout takes: once, or for each gate."""
        masks = self.cell.get_dropout_mask(inputs[:, 0])
        if masks is None:
            return [inputs]
        masks = masks if isinstance(masks, (list, tuple)) else [masks]
        return [inputs * mask[:, None] for mask in masks]

    # Keras shows the output of the step before where a step is masked, zeros where there is none.

    def _shown(self, last: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        if mask is None:
            return last
        shown = mask[:, -1] if self.zero_output_for_mask else tf.reduce_any(mask, axis=1)
        return tf.where(shown[:, None], last, tf.zeros([], last.dtype))

    def _shown_each(self, states: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        if mask is None:
            return states
        shown = mask
        if not self.zero_output_for_mask:
            shown = tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
        return tf.where(shown[..., None], states, tf.zeros([], states.dtype))


@keras.saving.register_keras_serializable(package="ringar", name="ScanSimpleRNN")
class ScanSimpleRNN(_ScanRecurrent, keras.layers.SimpleRNN):  # type: ignore[misc]
    __doc__ = (
        """Keras' SimpleRNN, ``h_t = activation(x_t W + h_{t-1} U + b)``, with native kernels.
"""
        + _ARGUMENTS
    )

    def _kind(self) -> recurrent.Cell:
        return recurrent.simple_rnn(_activation(self, "activation"))

    def _project(self, inputs: list[tf.Tensor]) -> tuple[tf.Tensor, None]:
        projected = keras.ops.matmul(inputs[0], self.cell.kernel)
        if self.cell.use_bias:
            projected = keras.ops.add(projected, self.cell.bias)
        return projected, None


@keras.saving.register_keras_serializable(package="ringar", name="ScanGRU")
class ScanGRU(_ScanRecurrent, keras.layers.GRU):  # type: ignore[misc]
    __doc__ = (
        """Keras' GRU, with native kernels.

    As its cuDNN form, for ``reset_after=True`` (Keras' default).
"""
        + _ARGUMENTS
    )

    def _kind(self) -> recurrent.Cell:
        if not self.cell.reset_after:
            raise ValueError(
                "ScanGRU needs `reset_after=True`, where the reset gate comes after the matrix "
                "product. Received: reset_after=False. Use keras.layers.GRU for such weights."
            )
        return recurrent.gru(
            _activation(self, "activation"), _activation(self, "recurrent_activation")
        )

    def _project(self, inputs: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor | None]:
        kernel = tf.convert_to_tensor(self.cell.kernel)
        kernels = [kernel] if len(inputs) == 1 else tf.split(kernel, 3, axis=1)
        parts = [keras.ops.matmul(*pair) for pair in zip(inputs, kernels, strict=True)]
        projected = parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)
        if not self.cell.use_bias:
            return projected, None
        bias = tf.convert_to_tensor(self.cell.bias)
        return keras.ops.add(projected, bias[0]), bias[1]


# In files of weights Keras finds a layer by its place and by the name of its class: so weights load
# from one into the other. Models are saved with the name that is registered.
ScanSimpleRNN.__name__ = keras.layers.SimpleRNN.__name__
ScanGRU.__name__ = keras.layers.GRU.__name__


def _activation(layer: Any, name: str) -> int:
    function = getattr(layer.cell, name)
    for number, known in enumerate(ACTIVATIONS):
        if function is keras.activations.get(known):
            return number
    raise ValueError(
        f"{type(layer).__qualname__}: `{name}` must be one of {', '.join(ACTIVATIONS)}, whose slope is "
        f"known from its value. Received: {keras.activations.serialize(function)}"
    )


def _levels(backward: str | int) -> int:
    named = {"auto": CHOSEN, "serial": 0, "scan": WHOLE}
    if isinstance(backward, str) and backward in named:
        return named[backward]
    try:
        return levels_of(backward)
    except ValueError:
        raise ValueError(
            '`backward` must be "auto", "serial", "scan" or a number of levels, 0 or more. '
            f"Received: {backward!r}"
        ) from None
