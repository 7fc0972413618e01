"""With sharded weights (ZeRO's stage 3) training computes what unsharded training does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.keras.zero.weight_slice import is_sharded, slice_of
from tests.keras import common, uneven
from tests.keras.test_sharded import OPTIMIZERS, trained, variables, words_model
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

K = keras.optimizers
L = keras.layers


def sines_by_tape(
    weights: list[keras.Variable], factor: float, phase: tf.Tensor
) -> list[tf.Tensor]:
    """Return the gradients of a loss, which are `sines` of the weights bit for bit."""
    with tf.GradientTape() as tape:
        values = [tf.convert_to_tensor(v) for v in weights]
        sines = [tf.sin(value * factor + phase) for value in values]
        pairs = zip(values, sines, strict=True)
        loss = tf.add_n([tf.reduce_sum(v * tf.stop_gradient(g)) for v, g in pairs])
    return tape.gradient(loss, weights)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("jit", "names"),
    [
        (False, ("momentum", "AdamW", "averages", "accumulation")),
        fast_if(False, False, tuple(OPTIMIZERS)),
        fast_if(False, True, tuple(OPTIMIZERS)),
    ],
)
def test_optimizers_train_as_without_shards(
    jit: bool, names: Sequence[str], rank: int, size: int
) -> None:
    expected, received = (
        trained(shard, rank, jit, names, sines_by_tape) for shard in (None, "weights")
    )
    for name, values in received.items():
        difference = common.largest_difference(values, expected[name])
        # A square root may differ by a bit with the place of an element in its tensor.
        exact = size <= 2 and not jit and name in ("SGD", "momentum", "Lion", "clipvalue")
        assert difference <= (0.0 if exact else 1e-6), name
        assert common.largest_difference(values, [v.numpy() for v in variables(name)]) > 1e-3, name


class Residual(keras.Model):
    """A subclassed model with a weight of its own, a layer used twice, and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = L.Dense(6, activation="tanh"), L.Dense(1)
        self.unused = L.Dense(3)
        self.scale = self.add_weight(shape=(6,), initializer="ones", name="scale")

    def build(self, shape: Any) -> None:
        for layer in (self.shared, self.last, self.unused):
            layer.build(shape)

    def call(self, x: Any) -> Any:
        x = x + self.shared(x)
        return self.last(x * self.scale + self.shared(x))


def residual() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = Residual()
    model.build((None, 6))
    return model


def sequence(layer: Callable[[], Any]) -> keras.Model:
    """A recurrent layer on the features as a sequence, with regularizers."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    x = L.Reshape((6, 1))(inputs)
    x = layer()(x)
    outputs = L.Dense(1, kernel_regularizer="l2", activity_regularizer="l1")(x)
    return keras.Model(inputs, outputs)


def transformer() -> keras.Model:
    """Two blocks of a Transformer, the first of them gathered as one."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    x = L.Dense(8)(L.Reshape((6, 1))(inputs))
    for number in range(2):
        norm, attention = L.LayerNormalization(), L.MultiHeadAttention(2, 4)
        expansion, contraction = L.Dense(16, activation="gelu"), L.Dense(8)
        y = norm(x)
        x = L.Add()([x, attention(y, y)])
        x = L.Add()([x, contraction(expansion(L.LayerNormalization()(x)))])
        if number == 0:
            ringar.gather_together(norm, attention, expansion, contraction)
    return keras.Model(inputs, L.Dense(1)(L.Flatten()(x)))


def convolutions() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((6,)), L.Reshape((6, 1)), L.Conv1D(4, 3, activation="relu"),
        L.BatchNormalization(), L.SeparableConv1D(3, 2), L.Flatten(), L.Dense(1),
    ]  # fmt: skip
    return keras.Sequential(layers)


def repeated() -> keras.Model:
    """Layers whose calls are repeated in the backward pass."""
    keras.utils.set_random_seed(0)
    with keras.RematScope(mode="full"):  # Keras repeats layers whose call takes one argument
        layers = [L.Conv1D(4, 3, activation="tanh"), L.LayerNormalization()]
    layers = [keras.Input((6,)), L.Reshape((6, 1)), *layers, L.Flatten(), L.Dense(1)]
    return keras.Sequential(layers)


class Parts(keras.layers.Layer):
    """Parts of a layer that are repeated in the backward pass, or have gradients of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = L.Dense(6, activation="tanh"), L.Dense(6, activation="tanh")
        self.function = lambda x: tf.tanh(self.second(x) @ self.kernel)

    def build(self, shape: Any) -> None:
        self.first.build(shape)
        self.second.build(shape)
        self.kernel = self.add_weight(shape=(6, 6), name="kernel")

    def call(self, x: Any) -> Any:
        repeated = tf.recompute_grad(lambda x: self.first(x) @ self.kernel)
        x = self.of_variables(self.function(repeated(x)))
        return self.function(tf.recompute_grad(self.function)(x))

    @tf.custom_gradient
    def of_variables(self, x: Any) -> Any:
        def backward(upstream: Any, variables: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([x, *variables])
                y = self.first(x)
            slope_of_input, *slopes = tape.gradient(y, [x, *variables], upstream)
            return slope_of_input, slopes

        return self.first(x), backward


def parts() -> keras.Model:
    """A model whose step is also the first call of its layers' functions."""
    keras.utils.set_random_seed(0)

    class Unbuilt(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.last = Parts(), L.Dense(1)

        def call(self, x: Any) -> Any:
            return self.last(self.parts(x))

    return Unbuilt()


MODELS: dict[str, tuple[Callable[[], keras.Model], Callable[..., Any]]] = {
    "residual": (residual, common.regression),
    "words": (words_model, common.tokens),
    "lstm": (lambda: sequence(lambda: L.LSTM(4)), common.regression),
    "gru": (lambda: sequence(lambda: L.Bidirectional(L.GRU(3))), common.regression),
    "transformer": (transformer, common.regression),
    "convolutions": (convolutions, common.regression),
    "repeated": (repeated, common.regression),
    "parts": (parts, common.regression),
}


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("residual", {}),
        ("parts", {}),
        fast_if(False, "words", {}),
        fast_if(False, "lstm", {}),
        fast_if(False, "gru", {}),
        fast_if(False, "transformer", {}),
        fast_if(False, "convolutions", {}),
        fast_if(False, "repeated", {}),
        *(fast_if(False, name, {"jit_compile": True}) for name in MODELS),
        *(fast_if(False, name, {"run_eagerly": True}) for name in MODELS),
        fast_if(False, "transformer", {"steps_per_execution": 3}),
    ],
)
def test_models_train_as_without_shards(name: str, options: dict[str, Any], size: int) -> None:
    build, data = MODELS[name]
    of_both = []
    for shard in (None, "weights"):
        model = build()
        # Not Adam: some gradients are rounding errors, which it scales.
        optimizer = ringar.DistributedOptimizer(K.SGD(0.01, momentum=0.9), shard=shard)
        model.compile(optimizer, "mse", **{"jit_compile": False, **options})
        batches = common.own_batches(data(6 * common.GLOBAL_BATCH))
        model.fit(batches, verbose=0, callbacks=[ringar.callbacks.Distributed()])
        assert all(is_sharded(v) for v in model.trainable_variables) == (shard is not None)
        of_both.append(common.values(model))
    assert common.largest_difference(*of_both) <= 1e-6


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    ("has_length", "jit"), [(False, False), fast_if(False, True, False), fast_if(False, True, True)]
)
def test_ranks_without_data_train_their_slices(
    has_length: bool, jit: bool, rank: int, size: int, exchange: Callable[[Any], Any]
) -> None:
    batches = uneven.batches_of(size, common.regression)
    of_both = []
    for shard in (None, "weights"):
        model = common.dense_model(kernel_constraint="max_norm")
        optimizer = ringar.DistributedOptimizer(K.SGD(0.1, momentum=0.9), shard=shard)
        model.compile(optimizer, "mse", jit_compile=jit)
        data = uneven.dataset(batches[rank], has_length)
        first = ringar.callbacks.Distributed()
        model.fit(data, epochs=2, verbose=0, validation_data=data, callbacks=[first])
        of_both.append([*common.values(model), *map(np.asarray, model.history.history.values())])
    assert common.largest_difference(*of_both) <= 1e-6
    steps = 2 * max(map(len, batches))
    assert exchange(common.number(optimizer.iterations)) == [steps] * size


@pytest.mark.ranks(2, 3, 4)
def test_a_rank_keeps_its_slice(size: int, rank: int) -> None:
    with ringar.sharded_weights():
        model = common.dense_model()
    expected = common.values(common.dense_model())
    assert common.largest_difference(common.values(model), expected) == 0.0
    for weight, value in zip(model.weights, expected, strict=True):
        piece = slice_of(weight)
        assert piece.storage.shape == (-(-value.size // size),)
        assert tuple(weight.shape) == value.shape
        part = np.array_split(value.ravel(), size)[rank]
        np.testing.assert_array_equal(piece.storage.numpy()[: part.size], part)
