"""Truncated back-propagation through time whose stretches end with a synthetic gradient.

Jaderberg et al. (ICML 2017), section 2.1 and figure 3: a sequence is cut into stretches of T steps.
Plain truncation takes the gradient of everything after a stretch to be zero. Here a synthesizer
predicts it from the states h at the end of the stretch:

    gradient of a stretch    d loss(t..t+T) / d theta + (dh_(t+T) / d theta)^T M(h_(t+T))
    target of M at its begin d loss(t..t+T) / d h_t   + (dh_(t+T) / d h_t)^T M(h_(t+T))

The target is bootstrapped, as those between the modules of a pipeline are: it knows T steps of the
future, and through M(h_(t+T)) what M knows of the rest. So dependencies longer than T are learned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives.dtypes import Arrays, Examples
from ringar.parallel.pipeline import checks
from ringar.parallel.pipeline.decoupling import ZERO
from ringar.parallel.pipeline.synthesizers import (
    Builder,
    Predictor,
    Synthesizer,
    copy_of,
    fitting,
)


@dataclasses.dataclass(frozen=True)
class _SynthesizerSettings:
    """Hide the user's synthesizer from Keras, which would take it for a part of the model."""

    synthesizer: str | keras.Model | Builder | None
    optimizer: str | keras.optimizers.Optimizer


@keras.saving.register_keras_serializable(package="ringar")
class SyntheticBPTT(keras.Model):
    """Train a stack of recurrent layers stretch by stretch, with synthetic gradients at the ends.

    Compile it, and call `fit` as for any Keras model, on one rank. Each stretch of a batch is a
    step of the optimizer. The loss of a stretch is the mean over its time steps.

    Args:
        layers: recurrent layers of Keras (`SimpleRNN`, `GRU`, `LSTM`, `RNN`, or those of
            `ringar.layers`), the first one first. They are copied, without their weights.
        head: a layer or model from the last layer's outputs, `[batch, time, units]`, to the outputs
            of the net.
        stretch: the number of time steps between updates.
        synthesizer: as for `ringar.parallel.Pipelined`; it sees the states of all layers at the end
            of a stretch. `"zero"` is plain truncation.
        batch_size: the number of sequences of each batch, if every batch continues the sequences of
            the last one. By default batches begin with states of zero.
        synthesizer_optimizer: the optimizer of the synthesizer, which is copied.
        name: the name of the model.

    Attributes:
        synthesizer: the synthesizer, once `fit` has begun; None with `"zero"`.

    Raises:
        ValueError: a layer is not recurrent, or an argument is out of range; in `fit`, if the
            synthesizer does not fit.

    Example:
    ```python
    layers = [keras.layers.LSTM(64)]
    model = ringar.parallel.SyntheticBPTT(layers, keras.layers.Dense(10), stretch=5)
    model.compile("adam", "mse")
    model.fit(x, y, epochs=3)  # x: [sequences, time, features], y: [sequences, time, 10]
    ```
    """

    def __init__(
        self,
        layers: Sequence[keras.layers.Layer],
        head: keras.layers.Layer,
        stretch: int,
        *,
        synthesizer: str | keras.Model | Builder | None = None,
        batch_size: int | None = None,
        synthesizer_optimizer: str | keras.optimizers.Optimizer = "adam",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if not (isinstance(stretch, int) and stretch > 0):
            raise ValueError(
                f"`stretch` must be a positive whole number. Received: stretch={stretch!r}"
            )
        if not (synthesizer in (None, ZERO) or callable(synthesizer)):
            raise ValueError(
                f'`synthesizer` must be a model, a function that makes one, or "{ZERO}". '
                f"Received: synthesizer={synthesizer!r}"
            )
        self.rnns = [_with_states(layer) for layer in layers]
        if not self.rnns:
            raise ValueError("`layers` must have a recurrent layer. Received: none")
        self.head, self.stretch, self.batch_size = head, stretch, batch_size
        self._states = [
            tf.TensorSpec([None, size], layer.compute_dtype)
            for layer in self.rnns for size in _state_sizes(layer)
        ]  # fmt: skip
        self._synthesizer_settings = _SynthesizerSettings(synthesizer, synthesizer_optimizer)
        self._predictor: Predictor | None = None
        self._carried = [
            self.add_weight(shape=(batch_size, spec.shape[1]), trainable=False,
                            initializer="zeros", name=f"carried_{i}")
            for i, spec in enumerate(self._states) if batch_size is not None
        ]  # fmt: skip

    @property
    def synthesizer(self) -> keras.Model | None:
        """The synthesizer."""
        return None if self._predictor is None else self._predictor.model

    @property
    def carried_states(self) -> list[keras.Variable]:
        """The states of a rank's own sequences, which no epoch's end combines."""
        return list(self._carried)

    def reset_states(self) -> None:
        """Let the next batch begin with states of zero."""
        for variable in self._carried:
            variable.assign(tf.zeros(variable.shape))

    # Called by Keras ----------------------------------------------------------------------------

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Build the layers, for inputs `[batch, time, features]`."""
        shape = tuple(input_shape)
        for layer in self.rnns:
            layer.build(shape)
            shape = (*shape[:2], layer.compute_output_shape(shape)[0][-1])
        if not self.head.built:
            self.head.build(shape)
        self.built = True

    def make_train_function(self, force: bool = False) -> Callable[..., object]:
        """Make the synthesizer before the function that trains."""
        checks.check_scale(self.optimizer)
        synthesizer_of_user = self._synthesizer_settings.synthesizer
        if self._predictor is None and (synthesizer_of_user is None or synthesizer_of_user != ZERO):
            specs = self._states
            synthesizer: Any = Synthesizer() if synthesizer_of_user is None else synthesizer_of_user
            if not isinstance(synthesizer, keras.Model):
                synthesizer = synthesizer(list(specs), list(specs))
            synthesizer = fitting(synthesizer, specs, specs, "at the end of a stretch")
            optimizer = copy_of(self._synthesizer_settings.optimizer)
            self._predictor = Predictor(synthesizer, optimizer, specs, is_mean=True)
        made_function: Callable[..., object] = super().make_train_function(force)
        return made_function

    def call(
        self, inputs: Arrays, training: bool | None = None, mask: Arrays | None = None
    ) -> Arrays:
        """Return the outputs for whole sequences that begin with states of zero."""
        return self._run(inputs, self._zeros(inputs), bool(training))[0]

    def train_step(self, data: Examples) -> Mapping[str, object]:
        """Take a step for each stretch of a batch of sequences."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        _check_steps(x, y)
        if not self.built:
            self.build(x.shape)
        states = self._zeros(x)
        if self.batch_size is not None:
            x = _of_rows(x, self.batch_size)
            states = [tf.cast(v, s.dtype) for v, s in zip(self._carried, states, strict=True)]
        outputs = []
        for begin in range(0, x.shape[1], self.stretch):
            part = slice(begin, begin + self.stretch)
            goes_on = self.batch_size is not None or begin + self.stretch < x.shape[1]
            has_past = self.batch_size is not None or begin > 0
            piece = (x[:, part], y[:, part], None if weight is None else _cut(weight, part))
            output, states = self._train_on(*piece, states, goes_on, has_past)
            outputs.append(output)
        for variable, state in zip(self._carried, states, strict=False):
            variable.assign(state)
        logs: dict[str, object] = self.compute_metrics(x, y, tf.concat(outputs, 1), weight)
        return logs

    def get_config(self) -> dict[str, object]:
        """Return the arguments, without the synthesizer."""
        pack = keras.saving.serialize_keras_object
        return {
            "layers": [pack(layer) for layer in self.rnns],
            "head": pack(self.head),
            "stretch": self.stretch,
            "batch_size": self.batch_size,
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, object], custom_objects: Mapping[str, object] | None = None
    ) -> SyntheticBPTT:
        """Return a model of these arguments, with a default synthesizer."""
        arguments: dict[str, Any] = dict(config)
        for name in ("layers", "head"):
            arguments[name] = keras.saving.deserialize_keras_object(config[name], custom_objects)
        return cls(**arguments)

    # --------------------------------------------------------------------------------------------

    def _train_on(
        self, x: Any, y: Any, weight: Any, states: list[Any], goes_on: bool, has_past: bool
    ) -> tuple[Any, list[Any]]:
        """Take a step on one stretch; return its outputs, and the states at its end."""
        variables = self.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(states)
            outputs, last = self._run(x, states, True)
            loss = self.compute_loss(x, y, outputs, weight, training=True)
        targets, upstream = [loss], [tf.ones_like(loss)]
        if self._predictor is not None and goes_on:
            targets += last
            upstream += self._predictor.predict(last)
        gradients = tape.gradient(targets, [*variables, *states], output_gradients=upstream)
        of_variables, back = gradients[: len(variables)], gradients[len(variables) :]
        if self._predictor is not None and has_past:
            self._predictor.learn(states, back)
        # The loss of a sequence is the mean over its time steps, as in an evaluation.
        self._loss_tracker.update_state(loss, sample_weight=tf.reduce_prod(tf.shape(x)[:2]))
        self.optimizer.apply(of_variables, variables)
        return outputs, [tf.stop_gradient(state) for state in last]

    def _run(self, x: Any, states: list[Any], training: bool) -> tuple[Any, list[Any]]:
        begin, last = list(states), []
        for layer in self.rnns:
            count = len(_state_sizes(layer))
            of_layer, begin = begin[:count], begin[count:]
            of_layer = keras.tree.pack_sequence_as(layer.cell.state_size, of_layer)
            x, *after = layer(x, initial_state=of_layer, training=training)
            last += keras.tree.flatten(after)
        return self.head(x), last

    def _zeros(self, x: Any) -> list[Any]:
        return [tf.zeros([tf.shape(x)[0], s.shape[1]], s.dtype) for s in self._states]


def _with_states(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Return a copy of a recurrent layer that returns its sequence and its states."""
    if not isinstance(layer, keras.layers.RNN) or min(_state_sizes(layer)) < 1:  # of maps: -1
        raise ValueError(
            "`layers` must be recurrent layers of Keras that run forward, with vectors as states. "
            f"Received: {type(layer).__name__} {layer.name}"
        )
    config = {**layer.get_config(), "return_sequences": True, "return_state": True}
    if config.get("go_backwards") or config.get("stateful"):
        raise ValueError(
            "`layers` must run forward, and leave it to the model to carry states on. Received: "
            f"{layer.name} with go_backwards={config['go_backwards']}, "
            f"stateful={config['stateful']}"
        )
    return type(layer).from_config(config)


def _state_sizes(layer: keras.layers.Layer) -> list[int]:
    return [int(size) for size in keras.tree.flatten(layer.cell.state_size)]


def _check_steps(x: Any, y: Any) -> None:
    """Raise a ValueError unless there are targets for each of a known number of time steps."""
    of_x, of_y = (tuple(getattr(tensor, "shape", ())) for tensor in (x, y))
    if len(of_x) < 2 or of_x[1] is None:
        raise ValueError(
            "`x` must be a tensor [batch, time, features] with a known number of time steps. "
            f"Received: {type(x).__name__} of shape {of_x}"
        )
    if len(of_y) < 2 or of_y[1] not in (None, of_x[1]):
        raise ValueError(
            f"`y` must be a tensor with targets for each of the {of_x[1]} time steps of `x`. "
            f"Received: {type(y).__name__} of shape {of_y}"
        )


def _of_rows(x: tf.Tensor, rows: int) -> tf.Tensor:
    """Return a batch, if it has so many sequences; otherwise an InvalidArgumentError is raised."""
    check = tf.debugging.assert_equal(
        tf.shape(x)[0],
        rows,
        "Each batch must have `batch_size` sequences, since it continues those of the last one. "
        "Leave the rest out: dataset.batch(batch_size, drop_remainder=True).",
    )
    with tf.control_dependencies([check]):
        return tf.identity(x)


def _cut(weight: tf.Tensor, part: slice) -> tf.Tensor:
    return weight[:, part] if weight.shape.rank and weight.shape.rank > 1 else weight
