"""What layers hold beside their weights: compared at the start, adapted to all ranks' rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.keras import layer_state

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]
layers = keras.layers
shard, adapt = ringar.data.shard, ringar.data.adapt

RANDOM = np.random.default_rng(4)
ROWS = (100 + 5 * RANDOM.normal(size=(203, 3))).astype(np.float32)
TEXTS = np.array([" ".join(RANDOM.choice(list("abcdefghijk"), 5)) for _ in range(31)])
NUMBERS = RANDOM.integers(0, 9, (31, 2))


class Batches(keras.utils.PyDataset):
    """Batches of 10 rows."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> np.ndarray:
        return ROWS[10 * index : 10 * index + 10]


def adapted(layer: keras.Layer, data: Any, is_plain: bool) -> keras.Layer:
    """Return a layer that is adapted to the rows of this process, or of all ranks."""
    if is_plain:
        layer.adapt(data)
    else:
        adapt(layer, data)
    return layer


def state_of(layer: Any) -> list[Any]:
    if isinstance(layer, keras.utils.FeatureSpace):
        parts = layer.preprocessors.values()
        return [state_of(part) for part in parts if hasattr(part, "adapt")]
    if isinstance(layer, layers.Normalization):
        return [np.asarray(x).tolist() for x in (layer.mean, layer.variance, layer.adapt_mean)]
    if isinstance(layer, layers.Discretization):
        return list(layer.bin_boundaries)
    lookup = getattr(layer, "_lookup_layer", layer)
    weights = getattr(lookup, "idf_weights_const", None)
    return [layer.get_vocabulary(), None if weights is None else weights.numpy().tolist()]


@pytest.mark.ranks(2, 3)
def test_adapted_to_all_rows_as_one_process(size: int, exchange: Exchange) -> None:
    def check(make: Callable[[], Any], total: Any, part: Any) -> None:
        expected = state_of(adapted(make(), total, is_plain=True))
        assert exchange(state_of(adapted(make(), part, is_plain=False))) == [expected] * size

    elements = tf.data.Dataset.from_tensor_slices(ROWS)
    batches = elements.batch(7)
    sources = [
        (ROWS, shard(ROWS)),
        (tf.constant(ROWS), shard(tf.constant(ROWS))),
        (elements, shard(elements)),
        (elements.batch(60 * size), shard(elements).batch(60).prefetch(1)),
        (batches, shard(batches)),
        (batches, shard(batches, split_batches=True)),
        (Batches(), shard(Batches())),
        (Batches(), shard(Batches(), split_batches=True)),
    ]
    version = tuple(map(int, keras.__version__.split(".")[:2]))
    for total, part in sources if version >= (3, 13) else sources[:-2]:
        check(layers.Normalization, total, part)
    for total, part in (sources[0], sources[3], sources[4]):
        check(lambda: layers.Discretization(num_bins=4, epsilon=0.02), total, part)
    texts = tf.data.Dataset.from_tensor_slices(TEXTS)
    for mode in ("int", "tf_idf"):

        def vectorization(mode: str = mode) -> Any:
            return layers.TextVectorization(9, ngrams=2, output_mode=mode)

        check(vectorization, TEXTS, shard(TEXTS))
        check(vectorization, texts.batch(4), shard(texts).batch(4))
    check(layers.StringLookup, TEXTS, TEXTS if ringar.rank() == 0 else TEXTS[:0])
    check(layers.IntegerLookup, NUMBERS, shard(NUMBERS))

    features = {"size": ROWS[:31, 0], "words": TEXTS, "kind": ROWS[:31, 1]}
    space = {"size": "float_normalized", "words": "string_categorical", "kind": "float_discretized"}
    rows = tf.data.Dataset.from_tensor_slices(features)
    tables = [(rows, shard(rows)), (features, shard(features))]
    for total, part in tables if version >= (3, 14) else tables[:1]:
        check(lambda: keras.utils.FeatureSpace(space, output_mode="dict"), total, part)
    with pytest.raises(TypeError, match="must have a method `adapt`. Received: Dense"):
        adapt(layers.Dense(1), ROWS)


@pytest.mark.ranks(2, 3)
def test_ranks_whose_layers_hold_other_things_are_told(rank: int, exchange: Exchange) -> None:
    def model(*parts: Any) -> keras.Model:
        return keras.Sequential(list(parts))

    part = ROWS[rank::5]
    mean, factor = part.mean(axis=0), float(rank)
    cases = [
        (adapted(layers.Normalization(), part, True), "`mean`, `variance` of layer"),
        (adapted(layers.Discretization(num_bins=3), part, True), "argument `bin_boundaries`"),
        (adapted(layers.StringLookup(), TEXTS[rank:], True), "a vocabulary,.*of layer"),
        (adapted(layers.TextVectorization(), TEXTS[rank::9], True), "a vocabulary,.*of layer"),
        (adapted(layers.IntegerLookup(), NUMBERS[rank::9], True), "a vocabulary,.*of layer"),
        (layers.Hashing(5, salt=rank), "argument `salt` of layer"),
        (layers.Rescaling(factor), "argument `scale` of layer"),
        (layers.Lambda(lambda x: x - mean), "values that `function` uses"),
    ]
    for layer, words in cases:
        with pytest.raises(ValueError, match=rf'received others: .*{words}.*"{layer.name}"'):
            layer_state.check(model(layer))
    with pytest.raises(ValueError, match="expected the same layers on every rank"):
        layer_state.check(model(*[layers.ReLU() for _ in range(1 + (rank > 0))]))

    # Names, seeds and what a call has left may differ.
    alike = layers.Normalization(name=f"of_rank_{rank}")
    alike.adapt(ROWS)
    left = layers.Rescaling(2.0)
    left.last = tf.constant(rank)
    initializer = keras.initializers.GlorotUniform(seed=rank)
    dense = layers.Dense(1, kernel_initializer=initializer)
    layer_state.check(model(alike, layers.Dropout(0.1, seed=rank), left, dense))


@pytest.mark.ranks(2, 3)
def test_fit_needs_adapted_layers_and_files_have_them(
    rank: int, size: int, shared_tmp_path: Path, exchange: Exchange
) -> None:
    def compiled(layer: Any, optimizer: Any = None) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), layer, layers.Dense(1)])
        distributed = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer or distributed, "mse")
        return model

    x, part = ROWS[:12], shard(ROWS[:12])
    options: dict[str, Any] = {"batch_size": 12, "shuffle": False, "verbose": 0}

    def fit(layer: Any, epochs: int = 2) -> keras.Model:
        model = compiled(layer)
        backup = keras.callbacks.BackupAndRestore(shared_tmp_path / "b", delete_checkpoint=False)
        callbacks = [ringar.callbacks.Distributed(), backup]
        model.fit(part, part[:, :1], epochs=epochs, callbacks=callbacks, **options)
        return model

    with pytest.raises(ValueError, match=rf"^rank {rank} .*ringar.data.adapt"):
        fit(adapted(layers.Normalization(), part, is_plain=True))
    model = fit(adapted(layers.Normalization(), part, is_plain=False))
    single = compiled(adapted(layers.Normalization(), x, is_plain=True), keras.optimizers.SGD(0.1))
    single.fit(x, x[:, :1], epochs=2, **options)
    np.testing.assert_allclose(np.asarray(model(ROWS)), np.asarray(single(ROWS)), rtol=1e-4)
    path = shared_tmp_path / "model.keras"
    if rank == 0:
        model.save(path)
    ringar.barrier()
    # A file, and a backup that a layer without statistics receives, have them on all ranks.
    for other in (ringar.load_model(path), fit(layers.Normalization())):
        layer_state.check(other)
        np.testing.assert_array_equal(np.asarray(other(ROWS)), np.asarray(model(ROWS)))
