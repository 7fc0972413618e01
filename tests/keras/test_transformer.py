"""A Transformer block under XLA, as Keras trains it on a GPU, equals one process."""

from __future__ import annotations

import keras
import pytest

import ringar
from tests import one_process
from tests.keras import common
from tests.plugin import fast_if
from tests.plugin.place import SIZE

pytestmark = [pytest.mark.usefixtures("initialized")]
if SIZE == 1:
    pytestmark.append(pytest.mark.slow)


def transformer(seed: int) -> keras.Model:
    """Token and position embedding, attention, and a feed-forward net of two layers."""
    keras.utils.set_random_seed(seed)
    layers, ids = keras.layers, keras.Input((4,), dtype="int32")
    x = common.TokensAndPositions(8)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(32, "relu")(x)))
    return keras.Model(ids, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [fast_if(False, "SGD", {"momentum": 0.9}), ("Adam", {})],
)
def test_trains_as_one_process(optimizer: str, options: dict[str, float], rank: int) -> None:
    keras.config.set_dtype_policy("float64")
    try:
        single, model = transformer(0), transformer(rank)
    finally:
        keras.config.set_dtype_policy("float32")
    make = getattr(keras.optimizers, optimizer)
    data = common.tokens(3 * common.GLOBAL_BATCH)
    single.compile(common.summed(make(0.01, **options)), "mse", jit_compile=True)
    one_process.fit(single, common.batches(data))

    model.compile(ringar.DistributedOptimizer(make(0.01, **options)), "mse", jit_compile=True)
    x, y = (array[rank :: ringar.size()] for array in data)  # arrays: batches of unknown size
    model.fit(
        *(x, y),
        batch_size=common.GLOBAL_BATCH // ringar.size(),
        shuffle=False,
        verbose=0,
        callbacks=[ringar.callbacks.Distributed()],
    )
    assert common.largest_difference(common.values(model), common.values(single)) < 1e-7
