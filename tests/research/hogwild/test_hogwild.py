"""Hogwild!: exact where it can be, nothing lost by atomic additions, one model at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.asynchronous.test_local_steps import parameters
from tests.asynchronous.workers import adam, sgd
from tests.comparison import assert_same_everywhere
from tests.interruption import Interrupt, StopOn
from tests.keras import common, uneven
from tests.plugin import fast_if

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]

WAYS: dict[str, dict[str, Any]] = {
    "atomic": {"atomic": True},
    "racy": {"atomic": False},
    "locked": {"lock": True},
}


def fit(
    model: keras.Model, optimizer: Any, batches: Any, epochs: int = 2, callbacks: Any = ()
) -> keras.Model:
    """Train on this rank's batches; a plain optimizer trains without ringar."""
    model.compile(optimizer, "mse")
    additions = [ringar.callbacks.Distributed()] if hasattr(optimizer, "_exchange") else []
    data = uneven.dataset(batches)
    model.fit(data, epochs=epochs, verbose=0, callbacks=[*additions, *callbacks])
    return model


def table_model(words: int = 12, width: int = 3, layer: Any = None) -> keras.Model:
    """The mean of 2 rows of a table, initialized from one seed."""
    keras.utils.set_random_seed(3)
    table = (layer or ringar.layers.HogwildEmbedding)(words, width)
    shape = keras.Input((2,), dtype="int32")
    return keras.Sequential([shape, table, keras.layers.GlobalAveragePooling1D()])


def words_of(rank: int, size: int, steps: int = 3) -> list[Any]:
    """Batches of 2 pairs of words, none of them twice in a batch, which other ranks never have."""
    rng = np.random.default_rng(rank)
    words = [rng.permutation(6)[:4] * size + rank for _ in range(steps)]
    targets = rng.normal(size=(steps, 2, 3)).astype(np.float32)
    return [(w.reshape(2, 2).astype(np.int32), t) for w, t in zip(words, targets, strict=True)]


def bits(model: keras.Model) -> list[bytes]:
    return [np.asarray(value).tobytes() for value in common.values(model)]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [sgd, fast_if(False, adam)])
def test_one_rank_is_plain_keras(way: str, make: Callable[[], Any]) -> None:
    batches = [common.regression(5, k) for k in range(4)]
    model = fit(common.dense_model(), ringar.Hogwild(make(), **WAYS[way]), batches)
    assert common.digest(model) == common.digest(fit(common.dense_model(), make(), batches))
    words = words_of(0, 1)
    model = fit(table_model(), ringar.Hogwild(sgd(), **WAYS[way]), words)
    reference = fit(table_model(layer=keras.layers.Embedding), sgd(), words)
    assert common.digest(model) == common.digest(reference)


@pytest.mark.parametrize("way", ["atomic", "racy", fast_if(False, "locked")])
@pytest.mark.parametrize("table", ["HogwildEmbedding", fast_if(False, "Embedding")])
def test_disjoint_supports_are_serial(way: str, table: str, rank: int, size: int) -> None:
    """Bit for bit, though all ranks train at once and none waits."""
    layer = keras.layers.Embedding if table == "Embedding" else None
    model = table_model(6 * size, layer=layer)
    fit(model, ringar.Hogwild(keras.optimizers.Adagrad(0.3), **WAYS[way]), words_of(rank, size))
    serial = table_model(6 * size, layer=keras.layers.Embedding)
    serial.compile(keras.optimizers.Adagrad(0.3), "mse")
    for r in range(size):
        for _ in range(2):
            for x, y in words_of(r, size):
                serial.train_on_batch(x, y)
    assert bits(model) == bits(serial)


class Counts(keras.layers.Layer):
    """Add up weights, each of whose gradients by -counts(x) is an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ringar.layers.HogwildEmbedding(5, 3, embeddings_initializer="zeros")
        self.dense = self.add_weight(shape=(7,), initializer="zeros", name="dense")

    def build(self, shape: Any) -> None:
        self.table.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        rows = keras.ops.sum(self.table(x, training=training))
        return rows + keras.ops.sum(self.dense)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("way", ["atomic", "locked"])
def test_no_integer_update_is_lost(
    way: str, graph: bool, rank: int, size: int, exchange: Exchange
) -> None:
    """A loop of one's own, in which all ranks change all rows at once."""
    layer = Counts()
    optimizer = ringar.Hogwild(keras.optimizers.SGD(1.0), **WAYS[way])

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = -layer(x, training=True)
        variables = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    batch = tf.constant([[0, 1, 2], [3, 4, 0]])
    layer.build(batch.shape)
    traced = tf.function(step) if graph else step
    steps = 150 if graph else 40
    for _ in range(steps + rank):  # ranks need not have equally many
        traced(batch)
    ringar.join(optimizer)
    total = sum(steps + r for r in range(size))
    values = {variable.name: np.array(variable) for variable in layer.trainable_variables}
    np.testing.assert_array_equal(values["dense"], np.full(7, total))
    counts = np.array([2, 1, 1, 1, 1]) * total
    np.testing.assert_array_equal(values["embeddings"], np.repeat(counts, 3).reshape(5, 3))
    assert len(set(exchange(common.number(optimizer.iterations)))) == 1


def test_training_on_different_numbers_of_batches(
    rank: int, size: int, exchange: Exchange, shared_tmp_path: Path
) -> None:
    """The loss falls; all ranks evaluate and save one model; weights set in between are shared."""
    batches = uneven.batches_of(size, common.regression)
    path = str(shared_tmp_path / "best.weights.h5")
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model = common.dense_model()
    everything = [batch for share in batches for batch in share]
    data = tuple(np.concatenate(parts) for parts in zip(*everything, strict=True))
    optimizer = ringar.Hogwild(sgd())
    model.compile(optimizer, "mse")
    before = model.evaluate(*data, verbose=0)
    callbacks = [ringar.callbacks.Distributed(), save]
    history = model.fit(
        uneven.dataset(batches[rank]), epochs=8, verbose=0, validation_data=data,
        callbacks=callbacks,
    )  # fmt: skip
    assert_same_everywhere(bits(model), exchange)
    assert history.history["val_loss"][-1] < before
    saved = common.dense_model(1)
    saved.load_weights(path)
    assert bits(saved) == bits(model)
    model.set_weights([np.zeros_like(value) for value in model.get_weights()])
    optimizer.learning_rate = 0.0
    model.fit(uneven.dataset(batches[rank]), verbose=0, callbacks=callbacks)
    assert not any(value.any() for value in common.values(model))


def test_tables_of_many_kinds(rank: int, size: int, exchange: Exchange) -> None:
    """Two lookups of one table, masks, a dense layer; words come several times in a batch."""
    keras.utils.set_random_seed(5)
    x = keras.Input((4,), dtype="int32")
    table = ringar.layers.HogwildEmbedding(12, 5, mask_zero=True)
    y = keras.layers.Add()([table(x), table(x[:, ::-1])])
    y = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(y))
    model = keras.Model(x, y)
    batches = [common.tokens(8, 10 * rank + k) for k in range(10)]
    model.compile(ringar.Hogwild(adam()), "mse")
    losses = model.fit(
        uneven.dataset(batches), epochs=6, verbose=0, callbacks=[ringar.callbacks.Distributed()]
    ).history["loss"]
    assert losses[-1] < losses[0] / 2
    assert_same_everywhere(bits(model), exchange)


def test_one_rank_stops_all(rank: int, size: int, exchange: Exchange) -> None:
    """It waits for the others at the end of the epoch, and no further one begins."""
    batches = [common.regression(4, 10 * rank + k) for k in range(6)]
    model = common.dense_model()
    fit(model, ringar.Hogwild(sgd()), batches, epochs=5, callbacks=[StopOn(size - 1)])
    assert_same_everywhere(bits(model), exchange)
    assert max(exchange(common.number(model.optimizer.iterations))) <= 6


@pytest.mark.ranks(1, 2)
def test_an_interrupted_run_goes_on(
    rank: int, size: int, exchange: Exchange, shared_tmp_path: Path
) -> None:
    batches = [common.regression(4, 10 * rank + k) for k in range(3)]
    backup = keras.callbacks.BackupAndRestore(shared_tmp_path)

    def run(*callbacks: Any) -> keras.Model:
        return fit(common.dense_model(), ringar.Hogwild(adam()), batches, 3, callbacks)

    with pytest.raises(InterruptedError):
        run(backup, Interrupt(5))
    resumed = run(backup)
    assert_same_everywhere(bits(resumed), exchange)
    assert common.number(resumed.optimizer.iterations) == 9
    if size == 1:
        assert common.digest(resumed) == common.digest(run())


@pytest.mark.ranks(1, 2)
def test_an_overflow_of_one_rank(
    rank: int, size: int, exchange: Exchange, mixed_float16: None
) -> None:
    """Its step is skipped on that rank alone."""
    batches = [common.regression(4, 10 * rank + k) for k in range(4)]
    if rank == size - 1:
        batches[1][0][:] = 1e30
    model = fit(common.dense_model(), ringar.Hogwild(sgd()), batches, epochs=1)
    assert_same_everywhere(bits(model), exchange)
    assert all(np.isfinite(value).all() for value in parameters(model))


def test_weights_of_embedding() -> None:
    """They go both ways, and a file of the model loads."""
    model, reference = table_model(), table_model(layer=keras.layers.Embedding)
    assert bits(model) == bits(reference)
    model.set_weights([value + 1 for value in reference.get_weights()])
    reference.set_weights(model.get_weights())
    x = np.array([[3, 11]])
    np.testing.assert_array_equal(model(x), reference(x))
    np.testing.assert_array_equal(model(x, training=True), reference(x))  # nothing is shared
    again = keras.Sequential.from_config(model.get_config())
    assert isinstance(again.layers[0], ringar.layers.HogwildEmbedding)
    with pytest.raises(ValueError, match=r"`lora_rank` is not possible.*lora_rank=2"):
        ringar.layers.HogwildEmbedding(4, 2, lora_rank=2)


def test_refusals(rank: int, size: int) -> None:
    x, y = words_of(rank, size, 1)[0]

    def refused(model: keras.Model, text: str, optimizer: Any = None, **options: Any) -> None:
        model.compile(ringar.Hogwild(optimizer or sgd()), "mse", **options)
        with pytest.raises(ringar.errors.UnsupportedError, match=text):
            model.train_on_batch(x, y)

    words = 6 * size
    table = table_model(words)
    with pytest.raises(ringar.errors.UnsupportedError, match="cannot compile a step with a ringar"):
        tf.function(lambda: table(x, training=True), jit_compile=True)()
    with pytest.warns(UserWarning, match="Proceeding with `jit_compile=False`"):
        table_model(words).compile(ringar.Hogwild(sgd()), "mse", jit_compile=True)
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    refused(table_model(words), "without gradient_accumulation_steps", accumulating)

    def regularized(words: int, width: int) -> Any:
        return ringar.layers.HogwildEmbedding(words, width, embeddings_regularizer="l2")

    refused(table_model(words, layer=regularized), "otherwise than by lookups")
    halves = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, dtype="float16")])
    refused(halves, "of float16: use a dtype policy")
    with pytest.raises(ValueError, match="must not be distributed already"):
        ringar.Hogwild(ringar.Hogwild(sgd()))
