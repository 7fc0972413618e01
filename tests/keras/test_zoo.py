"""Keras' own kinds of models train on N ranks as in one process, losses and weights alike.

The global batch is dealt out unevenly: its last one has 7 rows. The one process is plain Keras,
whose gradients of embeddings are made dense: ringar sums their equal rows.

In the mixed policies a gradient is rounded for the whole batch otherwise than for its parts. The
learning rate is so small there that the weights' rounding stays below the tolerance; losses are as
exact as the dtype. The loss scale is so small that no step overflows: one process may overflow in
another step than a part of its batch.

The history's losses per output are not compared: Keras averages them over batches, not over rows.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.keras import common, zoo
from tests.plugin import fast_if
from tests.plugin.place import SIZE

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.deadline(300)]
if SIZE == 1:
    pytestmark.append(pytest.mark.slow)

TOLERANCE = 1e-4
EPOCHS = 3
OPTIMIZERS = {
    # With a larger epsilon, Adam's steps are a smooth function of gradients near 0.
    "adam": lambda rate: keras.optimizers.Adam(0.1 * rate, epsilon=1e-2),
    "sgd": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
}
#: The learning rate and the tolerance of losses.
POLICIES = {
    "float32": (0.02, TOLERANCE),
    "mixed_bfloat16": (1.2e-4, 5e-3),
    "mixed_float16": (1e-3, 1e-3),
}


def optimizer_of(name: str, dtypes: str, wrap: Any) -> Any:
    """Return what `compile` gets: the wrapped optimizer, with a loss scale in float16."""
    inner = wrap(OPTIMIZERS[name](POLICIES[dtypes][0]))
    if dtypes != "mixed_float16":
        return inner
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)


#: The policies of `make test`, if not float32. It compiles one example: XLA takes long, most of all
#: for the small floats.
MIXED = {"outputs": "mixed_float16", "tagger": "mixed_bfloat16"}
COMPILED = "vae"
#: Those that test_transformer.py and test_any_model.py train, too.
ELSEWHERE = ("transformer", "gan")


def _is_fast(example: str, optimizer: str, dtypes: str, jit: bool) -> bool:
    """Return whether `make test` runs a variant."""
    usual = dtypes == MIXED.get(example, "float32") and (not jit or example == COMPILED)
    usual = usual and example not in ELSEWHERE
    return usual and optimizer == ("adam", "sgd")[(list(zoo.EXAMPLES).index(example) + jit) % 2]


@pytest.mark.parametrize(
    ("example", "optimizer", "dtypes", "jit"),
    [
        fast_if(_is_fast(*variant), *variant)
        for variant in (
            (example, optimizer, policy, jit)
            for jit in (False, True)
            for example in zoo.EXAMPLES
            for optimizer in OPTIMIZERS
            for policy in POLICIES
        )
    ],
)
def test_training_equals_one_process(
    example: str, optimizer: str, dtypes: str, jit: bool, rank: int, policy: Any, exchange: Any
) -> None:
    policy(dtypes)
    case = zoo.EXAMPLES[example]

    def trained(wrap: Any, data: tf.data.Dataset, norm: Any, callbacks: Any) -> tuple[Any, Any]:
        keras.utils.set_random_seed(3)
        model = case.model(norm)
        optimizers = [optimizer_of(optimizer, dtypes, wrap) for _ in range(case.optimizers)]
        second = {"g_optimizer": optimizers[1]} if case.optimizers == 2 else {}
        model.compile(optimizers[0], jit_compile=jit, **second, **case.compiled())
        history = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks).history
        return model, history

    data = tf.data.Dataset.from_tensor_slices(case.data(np.random.default_rng(5)))
    expected: Any = None
    if rank == 0:
        norm = keras.layers.BatchNormalization
        expected = trained(common.summed, data.batch(zoo.BATCH), norm, [])
    shard = ringar.data.shard(data).batch(zoo.BATCH // ringar.size())
    norm = ringar.layers.SyncBatchNormalization
    callbacks = [ringar.callbacks.Distributed()]
    model, history = trained(ringar.DistributedOptimizer, shard, norm, callbacks)
    assert len(set(exchange(common.digest(model)))) == 1, "the ranks hold other weights"
    if expected is not None:
        tolerance = POLICIES[dtypes][1]
        for key in set(history) - {"kind_loss", "size_loss"}:
            values = expected[1][key]
            limit = tolerance * max(1.0, max(values))
            np.testing.assert_allclose(history[key], values, rtol=0, atol=limit, err_msg=key)
        for weight, value in zip(model.weights, common.values(expected[0]), strict=True):
            np.testing.assert_allclose(
                keras.ops.convert_to_numpy(weight),
                value,
                rtol=0,
                atol=TOLERANCE,
                err_msg=weight.path,
            )
