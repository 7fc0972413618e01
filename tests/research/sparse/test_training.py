"""A net that is cut along its edges trains as one process does, and sends km1 words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.parallel import SparseNet, sparse
from ringar.sharding.cut import cut_of
from tests.parallel.conftest import OpenGrid
from tests.plugin import fast_if
from tests.research.sparse import nets

pytestmark = pytest.mark.usefixtures("initialized")


@pytest.fixture(scope="module")
def trained() -> Callable[[str], np.ndarray]:
    """The weights after two epochs of dense layers with masks."""
    cache: dict[str, np.ndarray] = {}

    def of(name: str) -> np.ndarray:
        if name not in cache:
            cache[name] = nets.of_dense_layers(nets.random_layers(), OPTIMIZERS[name], epochs=2)
        return cache[name]

    return of


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05),
}


@pytest.mark.every_variant
@pytest.mark.parametrize("method", nets.METHODS)
def test_equals_dense_layers(
    open_grid: OpenGrid, trained: Callable[[str], np.ndarray], method: str
) -> None:
    net = nets.compiled_net(open_grid(ringar.size()), OPTIMIZERS["sgd"](), partition=method)
    losses = nets.fit(net, epochs=2)
    np.testing.assert_allclose(nets.flat(net), trained("sgd"), atol=1e-5)
    assert losses[1] < losses[0]


@pytest.mark.parametrize("optimizer", ["adam", "clipped"])
def test_with_other_optimizers(
    open_grid: OpenGrid, trained: Callable[[str], np.ndarray], optimizer: str
) -> None:
    """The norm of a gradient is that of all ranks' parts."""
    net = nets.compiled_net(open_grid(ringar.size()), OPTIMIZERS[optimizer](), partition="random")
    nets.fit(net, epochs=2)
    np.testing.assert_allclose(nets.flat(net), trained(optimizer), atol=1e-5)


@pytest.mark.ranks(4)
def test_groups_with_examples_of_their_own(
    open_grid: OpenGrid, trained: Callable[[str], np.ndarray]
) -> None:
    net = nets.compiled_net(open_grid(2), OPTIMIZERS["sgd"](), partition="block")
    nets.fit(net, epochs=2)
    np.testing.assert_allclose(nets.flat(net), trained("sgd"), atol=1e-5)


def bytes_sent(net: SparseNet, suffix: str) -> int:
    """The bytes that all ranks of the model group have sent for states, or their gradients."""
    count = sum(traffic.bytes for name, traffic in ringar.stats().items() if name.endswith(suffix))
    return int(np.sum(ringar.allgather_object(count, process_set=net.grid.model_set)))


@pytest.mark.every_variant
@pytest.mark.parametrize("method", nets.METHODS)
def test_words_are_km1(open_grid: OpenGrid, method: str) -> None:
    net = nets.compiled_net(open_grid(ringar.size()), partition=method)
    assert net.words == net.partition.words(nets.random_layers())
    assert net.words == [0, *(km1(net, number) for number in (1, 2))]
    ringar.reset_stats()
    nets.fit(net)
    expected = sum(net.words) * nets.EXAMPLES * 4
    assert bytes_sent(net, "/states") == expected
    assert bytes_sent(net, "/gradients") == expected
    assert (expected > 0) == (ringar.size() > 1)
    rows = sum(net.partition.owners[-1] == net.grid.part)
    outputs = ringar.stats().get(f"{net.name}/outputs")
    peers = ringar.size() - 1
    if peers:
        assert outputs is not None
        assert outputs.bytes == rows * peers * nets.EXAMPLES * 4


def km1(net: SparseNet, number: int) -> int:
    """The definition, one neuron at a time."""
    layer, owners = nets.random_layers()[number].tocsc(), net.partition.owners
    total = 0
    for neuron in range(layer.shape[1]):
        ranks = set(owners[number][layer[:, [neuron]].nonzero()[0]])
        total += len(ranks | {owners[number - 1][neuron]}) - 1
    return total


def test_holds_its_neurons_only(open_grid: OpenGrid) -> None:
    grid = open_grid(ringar.size())
    net = nets.compiled_net(grid, partition="block")
    layers = nets.random_layers()
    for rows, layer, owners in zip(net.rows, layers, net.partition.owners, strict=True):
        neurons = np.flatnonzero(owners == grid.part)
        np.testing.assert_array_equal(rows.values.numpy(), layer[neurons].data)
        assert rows.bias is not None
        assert rows.bias.shape == (len(neurons),)
        cut = cut_of(rows.values)
        assert (cut is None) == (grid.model == 1)
        assert cut is None or (cut.grid is grid and cut.uneven == (0,))


def test_in_a_model_with_a_head(open_grid: OpenGrid) -> None:
    """The outputs are whole, so that any layer may follow."""
    grid = open_grid(ringar.size())
    keras.utils.set_random_seed(1)
    inputs = keras.Input((nets.UNITS[0],))
    net = SparseNet(nets.random_layers(), grid=grid, partition="random", activation="tanh")
    model = keras.Model(inputs, keras.layers.Dense(3)(net(inputs)))
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(ringar.DistributedOptimizer(optimizer, grid=grid), "mse")
    x = nets.examples()[0]
    y = np.ones((len(x), 3), np.float32)
    callbacks = [ringar.callbacks.Distributed()]
    losses = model.fit(x, y, epochs=3, verbose=0, callbacks=callbacks).history["loss"]
    assert losses[2] < losses[0]
    with pytest.raises(ValueError, match="must read the inputs of the model"):
        net(keras.layers.Dense(nets.UNITS[0])(inputs))


def test_evaluates_and_predicts(open_grid: OpenGrid) -> None:
    net = nets.compiled_net(open_grid(ringar.size()), partition="random")
    x, y = nets.examples()
    states = x
    for number, layer in enumerate(nets.random_layers()):
        states = states @ layer.toarray().T
        states = states if number == 2 else np.tanh(states)
    np.testing.assert_allclose(net.predict(x, verbose=0), states, atol=1e-5)
    assert net.evaluate(x, y, verbose=0) == pytest.approx(np.mean((states - y) ** 2), rel=1e-5)


def test_arrays_are_shuffled_alike(open_grid: OpenGrid) -> None:
    """Whatever random numbers the ranks have drawn before; the callback compares the batches."""
    net = nets.compiled_net(open_grid(ringar.size()), partition="block")
    for _ in range(ringar.rank()):
        tf.random.uniform([])
    callbacks = [ringar.callbacks.Distributed()]
    net.fit(*nets.examples(), batch_size=nets.BATCH, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("dtype", ["float64", fast_if(False, "float32")])
def test_of_random_nets_whose_ranks_may_have_no_neuron(open_grid: OpenGrid, dtype: str) -> None:
    """Layers of one and two neurons on up to four ranks."""
    layers = sparse.erdos_renyi([3, 2, 5, 1, 4], 1, seed=3)
    x = np.random.default_rng(1).normal(size=(7, 3))
    expected = x
    for layer in layers:
        expected = np.maximum(expected @ layer.toarray().T, 0)
    grid = open_grid(ringar.size())
    net = SparseNet(layers, activation=["relu"] * 4, grid=grid, partition="random", dtype=dtype)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(net(x))
    np.testing.assert_allclose(loss, expected.sum(), rtol=1e-5)
    assert all(g is not None for g in tape.gradient(loss, net.trainable_variables))
