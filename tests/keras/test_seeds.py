"""Seeds: initial weights and the order of data alike on all ranks, Dropout different on each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]


class Noise(keras.layers.Layer):
    """Adds random numbers of Keras' own generator, and keeps them."""

    def build(self, input_shape: Any) -> None:
        self.noise = self.add_weight(
            shape=(1,), dtype="int32", initializer="zeros", trainable=False, name="seen"
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        noise = keras.random.normal((1,))
        self.noise.assign(tf.cast(1e6 * noise, tf.int32))
        return x + noise


def noisy_model() -> keras.Model:
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((6,)), *layers, Noise(), keras.layers.Dense(1)])
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def train(model: keras.Model, epochs: range) -> None:
    data = tf.data.Dataset.from_tensors(common.regression(4)).repeat(2)
    callbacks = [ringar.callbacks.Distributed(combine={"*/seen": "own"})]
    options = {"epochs": epochs.stop, "initial_epoch": epochs.start, "verbose": 0}
    model.fit(data, callbacks=callbacks, **options)


def states(model: keras.Model) -> list[list[int]]:
    layers = [layer for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    return [keras.ops.convert_to_numpy(x.seed_generator.state).tolist() for x in layers]


def test_seeds_differ_where_they_must_and_agree_where_they_must(
    rank: int, size: int, exchange: Exchange
) -> None:
    numbers = tf.data.Dataset.range(9)

    def draw() -> dict[str, list[float]]:
        ringar.set_random_seed(7)
        generator = tf.random.get_global_generator()
        return {
            "own": generator.normal((2,)).numpy().tolist(),
            "python": [random.random()],
            "numpy": np.random.rand(2).tolist(),
            "order": [int(n) for n in numbers.shuffle(9)],
            "weights": keras.initializers.RandomNormal()((2,)).numpy().tolist(),
        }

    draws = draw()
    assert draw() == draws, "not reproducible"
    for name, of_ranks in {key: [reply[key] for reply in exchange(draws)] for key in draws}.items():
        assert len({str(value) for value in of_ranks}) == (size if name == "own" else 1), name
    # The numbers of one process.
    keras.utils.set_random_seed(7)
    assert random.random() == draws["python"][0]
    assert np.random.rand(2).tolist() == draws["numpy"]


def test_dropout_differs_between_ranks_and_resumes(
    rank: int, size: int, exchange: Exchange
) -> None:
    ringar.set_random_seed(7)
    model = noisy_model()
    start = states(model)
    train(model, range(2))
    trained = exchange(states(model))
    assert all(seed == start[i][0] for i, (seed, _) in enumerate(trained[0])), "rank 0 keeps its"
    for of_layer in zip(*trained, strict=True):
        assert len({seed for seed, _ in of_layer}) == size
        assert {step for _, step in of_layer} == {4}
    noise = exchange(keras.ops.convert_to_numpy(model.layers[-2].noise).tolist())
    assert len({str(sample) for sample in noise}) == size, "Keras' own generator"

    # Resumed on every rank with the states of rank 0, training goes on as if it had not ended.
    train(model, range(2, 3))
    expected, digest = states(model), common.digest(model)
    ringar.set_random_seed(7)
    resumed = noisy_model()
    train(resumed, range(2))
    for layer, state in zip(
        (x for x in resumed.layers if isinstance(x, keras.layers.Dropout)), trained[0], strict=True
    ):
        layer.seed_generator.state.assign(state)
    train(resumed, range(2, 3))
    assert states(resumed) == expected
    assert common.digest(resumed) == digest


@pytest.mark.ranks(2, 4)
def test_ranks_of_a_model_group_draw_the_same(rank: int, exchange: Exchange) -> None:
    grid = ringar.parallel.Grid(model=2)
    ringar.set_random_seed(7)
    model = noisy_model()
    ringar.separate_seeds(model, grid=grid)
    of_ranks = exchange(states(model))
    ringar.separate_seeds(model, grid=grid)
    assert exchange(states(model)) == of_ranks
    grid.close()
    for first, second in zip(of_ranks[::2], of_ranks[1::2], strict=True):
        assert first == second
    assert len({str(sample) for sample in of_ranks}) == len(of_ranks) // 2
