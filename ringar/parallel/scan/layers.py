"""Keras' SimpleRNN, GRU and LSTM, with a native kernel in place of a loop of TensorFlow ops.

A layer here replaces only the inner loop of the Keras layer. Arguments, weights, config, states and
masks are Keras', and weights load from one into the other. Keras also handles initial and stateful
states, dropout of the inputs and `go_backwards`.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ringar.job.process_sets import ProcessSet
from ringar.parallel.scan import computation, recurrent, sequence_shards
from ringar.parallel.scan.chain import CHOSEN, WHOLE, Options, levels_of

#: In the order of `Activation` in tf_ops/scan/recurrent.h.
ACTIVATIONS = ("linear", "tanh", "sigmoid", "relu", "hard_sigmoid")

_Layer: Any = object  # the Keras layer that follows in the order of bases


class _ScanRecurrent(_Layer):
    """Replace the inner loop of a Keras layer; a mixin, before the layer in the order of bases."""

    def __init__(
        self,
        units: int,
        *args: Any,
        backward: str | int = "auto",
        threads: int | None = None,
        process_set: ProcessSet | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, *args, **kwargs)
        self.backward, self.threads, self.process_set = backward, threads, process_set
        self._levels = _levels(backward)
        computation.usable_threads(threads)
        self._cell_kind = self._kind()
        if process_set is not None:
            self._check_cut()
            self.supports_jit = False  # messages are not compiled

    def inner_loop(
        self,
        sequences: tf.Tensor,
        initial_state: tf.Tensor | list[tf.Tensor],
        mask: tf.Tensor | None,
        training: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Run all steps; called by `keras.layers.RNN.call`."""
        if training and self._steps_differ():
            # Not super(): for cuDNN, GRU and LSTM expect one mask for all gates.
            return keras.layers.RNN.inner_loop(
                self, sequences, initial_state, mask, training=training
            )
        states = initial_state if isinstance(initial_state, (list, tuple)) else [initial_state]
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        if mask is not None:
            self._check_no_cut("a mask")
            mask = tf.cast(mask, tf.bool)
        if self.go_backwards:
            sequences = tf.reverse(sequences, [1])
            mask = None if mask is None else tf.reverse(mask, [1])
        sequence = self._sequence(sequences, list(states), mask, training)
        options = Options(self._levels, computation.usable_threads(self.threads))
        cut = () if self.process_set is None else (self.process_set,)
        cell_ops = sequence_shards if cut else recurrent
        if not self.return_sequences:
            last = self._vectors(cell_ops.last_state(sequence, options, *cut))
            shown = self._shown(last[0], mask)
            return shown, shown[:, None], last
        step_states, last = cell_ops.states(sequence, options, *cut)
        outputs = self._shown_each(step_states, mask)
        return outputs[:, -1], outputs, self._vectors(last)

    def get_config(self) -> dict[str, object]:
        """Return the Keras layer's config, `backward` and `threads`."""
        return {**super().get_config(), "backward": self.backward, "threads": self.threads}

    def _sequence(
        self,
        inputs: tf.Tensor,
        states: list[tf.Tensor],
        mask: tf.Tensor | None,
        training: bool,
    ) -> recurrent.Sequence:
        cell = self.cell
        state = states[0] if len(states) == 1 else tf.concat(states, axis=1)
        bias, recurrent_bias = self._biases()
        tensors = (
            self._drop(inputs) if training else inputs,
            state,
            cell.kernel,
            cell.recurrent_kernel,
            bias,
            recurrent_bias,
        )
        dtype = tf.float64 if inputs.dtype == tf.float64 else tf.float32
        cast = [None if t is None else tf.cast(tf.convert_to_tensor(t), dtype) for t in tensors]
        return recurrent.Sequence(self._cell_kind, *[*cast, mask])

    def _vectors(self, state: tf.Tensor) -> list[tf.Tensor]:
        """Return the list of a state's vectors, as Keras has it."""
        count = self._cell_kind.vectors
        return [state] if count == 1 else tf.split(state, count, axis=1)

    def _steps_differ(self) -> bool:
        """Return whether dropout needs more than one mask of the inputs."""
        each_gate = getattr(self.cell, "dropout_mask_count", None) is not None
        return bool(self.cell.recurrent_dropout or (self.cell.dropout and each_gate))

    def _drop(self, inputs: tf.Tensor) -> tf.Tensor:
        """Apply dropout to the inputs."""
        mask = self.cell.get_dropout_mask(inputs[:, 0])
        return inputs if mask is None else inputs * mask[:, None]

    def _biases(self) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        return self.cell.bias, None

    def _check_cut(self) -> None:
        if not isinstance(self.process_set, ProcessSet):
            raise TypeError(
                f"{type(self).__qualname__}: `process_set` must be a ringar.ProcessSet, such as "
                f"ringar.global_process_set, or None. Received: {self.process_set!r}"
            )
        for name in ("stateful", "go_backwards"):
            if getattr(self, name):
                self._check_no_cut(f"`{name}`")
        if self.cell.dropout or self.cell.recurrent_dropout:  # each rank would draw its own masks
            self._check_no_cut("`dropout` and `recurrent_dropout`")

    def _check_no_cut(self, feature: str) -> None:
        if self.process_set is not None:
            raise ValueError(
                f"{type(self).__qualname__}: {feature} cannot be used with `process_set`, where "
                "each rank has a shard of the sequence. Leave one of them out."
            )

    # At a masked step Keras returns the output of the previous step, zeros if there is none.

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
class ScanSimpleRNN(_ScanRecurrent, keras.layers.SimpleRNN):
    """Run Keras' SimpleRNN, `h_t = activation(x_t W + h_{t-1} U + b)`, with native kernels.

    Args:
        units: the number of units.
        *args: as of the Keras layer.
        backward: the algorithm of the backward pass. "serial" multiplies the vectors of the batch
            by one Jacobian after the other, "scan" is the parallel scan, a number of levels its
            hybrid; "auto" chooses by a cost model of steps, units, batch and threads.
        threads: the number of threads; by default that of TensorFlow's intra-op pool.
        process_set: the ranks over which sequences are sharded: each holds a shard of the steps of
            every sequence, the first rank the first steps. None: every rank has whole sequences.
            Batch and features must be the same on all ranks, the number of steps need not. With
            `return_sequences` a rank gets the states of its own steps, and with `return_state` the
            state after them; otherwise all ranks get the last state of the whole sequence. Average
            the gradients of weights over the ranks, as `ringar.DistributedOptimizer` does, to get
            those of the whole sequence. If the loss is a mean over steps, shards must then have one
            length. All ranks must have at least one step, call the layer equally often, also in
            `evaluate` and `predict`, and take gradients of a loss that depends on its output. The
            process set is not in the config: a layer that is saved, copied or wrapped
            (`Bidirectional`, `clone_model`) has none. XLA does not compile such a layer.
        **kwargs: as of the Keras layer. An activation is one of "tanh", "sigmoid", "relu",
            "hard_sigmoid" and "linear" (None).

    Input and output shapes, masks, `return_sequences`, `return_state`, `stateful` and
    `go_backwards` are those of the Keras layer. float16 and bfloat16 inputs are computed in
    float32. Gradients of gradients are not supported. With `recurrent_dropout`, training runs
    Keras' own loop, and also if `dropout` has a mask for each gate, as in a GRU with
    `implementation=1`.

    Raises:
        ValueError: for another activation, or a `backward` or `threads` out of range; with a
            `process_set`, for `stateful`, `go_backwards`, dropout and masks.
    """

    def _kind(self) -> recurrent.Cell:
        return recurrent.simple_rnn(_activation(self, "activation"))


@keras.saving.register_keras_serializable(package="ringar", name="ScanGRU")
class ScanGRU(_ScanRecurrent, keras.layers.GRU):
    """Run Keras' GRU, in the form with `reset_after=True`, with native kernels.

    Args:
        units: the number of units.
        *args: as of the Keras layer.
        backward: as of `ringar.layers.ScanSimpleRNN`.
        threads: as of `ringar.layers.ScanSimpleRNN`.
        process_set: as of `ringar.layers.ScanSimpleRNN`.
        **kwargs: as of the Keras layer.

    Activations, shapes, masks and dtypes are as in `ringar.layers.ScanSimpleRNN`.

    Raises:
        ValueError: as of `ringar.layers.ScanSimpleRNN`, and for `reset_after=False`.
    """

    def _kind(self) -> recurrent.Cell:
        if not self.cell.reset_after:
            raise ValueError(
                "ScanGRU needs `reset_after=True`, where the reset gate comes after the matrix "
                "product. Received: reset_after=False. Use keras.layers.GRU for such weights."
            )
        return recurrent.gru(
            _activation(self, "activation"), _activation(self, "recurrent_activation")
        )

    def _biases(self) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        if not self.cell.use_bias:
            return None, None
        bias = tf.convert_to_tensor(self.cell.bias)
        return bias[0], bias[1]


@keras.saving.register_keras_serializable(package="ringar", name="ScanLSTM")
class ScanLSTM(_ScanRecurrent, keras.layers.LSTM):
    """Run Keras' LSTM with native kernels.

    Args:
        units: the number of units.
        *args: as of the Keras layer.
        backward: "serial", or "auto", which is the same here. A scan is not offered: its Jacobians,
            of both vectors of the state, would have `2 * units` rows and columns. Their products
            would cost eight times those of a GRU, while the serial step costs a third more.
        threads: as of `ringar.layers.ScanSimpleRNN`.
        process_set: None. Sequences cannot be sharded over ranks: that needs these Jacobians.
        **kwargs: as of the Keras layer.

    Activations, shapes, masks and dtypes are as in `ringar.layers.ScanSimpleRNN`.

    Raises:
        ValueError: as of `ringar.layers.ScanSimpleRNN`, and for another `backward` and any
            `process_set`.
    """

    def _kind(self) -> recurrent.Cell:
        if self._levels > 0:
            raise ValueError(
                f'ScanLSTM: `backward` must be "auto" or "serial". Received: {self.backward!r}. '
                "A scan would multiply Jacobians of both vectors of the state, of 2 * units rows "
                "and columns. It would need more than 2 * units workers for each example to be "
                "faster than the serial kernel. ScanGRU and ScanSimpleRNN have a scan."
            )
        return recurrent.lstm(
            _activation(self, "activation"), _activation(self, "recurrent_activation")
        )

    def _check_cut(self) -> None:
        raise ValueError(
            "ScanLSTM: `process_set` must be None. Shards of a sequence exchange Jacobians of the "
            "state, which an LSTM's kernel does not make. Shard the batch over the ranks, or use "
            "ScanGRU."
        )


# In files of weights Keras finds a layer by its index and the name of its class, so weights load
# from one into the other. Models are saved with the registered name.
ScanSimpleRNN.__name__ = keras.layers.SimpleRNN.__name__
ScanGRU.__name__ = keras.layers.GRU.__name__
ScanLSTM.__name__ = keras.layers.LSTM.__name__


def _activation(layer: keras.layers.Layer, name: str) -> int:
    function = getattr(layer.cell, name)
    for number, activation in enumerate(ACTIVATIONS):
        if function is keras.activations.get(activation):
            return number
    raise ValueError(
        f"{type(layer).__qualname__}: `{name}` must be one of {', '.join(ACTIVATIONS)}, whose "
        f"derivative is known from its value. Received: {keras.activations.serialize(function)}"
    )


def _levels(backward: str | int) -> int:
    choices = {"auto": CHOSEN, "serial": 0, "scan": WHOLE}
    if isinstance(backward, str) and backward in choices:
        return choices[backward]
    try:
        return levels_of(backward)
    except ValueError:
        raise ValueError(
            '`backward` must be "auto", "serial", "scan" or a number of levels, 0 or more. '
            f"Received: {backward!r}"
        ) from None
