"""Tensors of several dtypes across a cut, and models in low precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringar.parallel import Pipelined
from ringar.parallel.pipeline.messages import Messages
from tests import one_process
from tests.parallel.conftest import OpenGrid
from tests.parallel.pipeline import nets

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2)]

layers = keras.layers


def test_tensors_of_any_dtypes_in_one_message(rank: int) -> None:
    tensors = [
        tf.constant(np.arange(6).reshape(2, 3), dtype)
        for dtype in (tf.float32, tf.bfloat16, tf.int64, tf.uint8, tf.float16)
    ]
    tensors += [tf.constant([True, False]), tf.zeros([0, 4], tf.float64), tf.constant(2.5)]
    messages = Messages([1 - rank])
    if rank == 0:
        messages.send(tensors, 1, "mixed")
        return
    specs = [tf.TensorSpec([None] * t.shape.rank, t.dtype) for t in tensors]
    for tensor, copy in zip(tensors, messages.recv(specs, 0, "mixed"), strict=True):
        assert copy.dtype == tensor.dtype
        np.testing.assert_array_equal(copy, tensor)


def test_bfloat16_and_whole_numbers_across_a_cut(open_grid: OpenGrid) -> None:
    def net() -> keras.Model:
        keras.utils.set_random_seed(2)
        words = keras.Input((6,), dtype="int32", name="words")
        mask = keras.ops.cast(keras.ops.not_equal(words, 0), "int32")
        x = layers.Embedding(9, 8, dtype="mixed_bfloat16", name="embedding")(words)
        x = layers.Dense(8, activation="tanh", dtype="mixed_bfloat16", name="inner")(x)
        x = x * keras.ops.cast(keras.ops.expand_dims(mask, -1), "bfloat16")
        x = keras.ops.sum(keras.ops.cast(x, "float32"), axis=1)
        return keras.Model(words, layers.Dense(3, name="logits")(x))

    random = np.random.default_rng(0)
    x, y = random.integers(0, 9, (24, 6)), random.integers(0, 3, 24)
    reference = net()
    reference.compile("adam", nets.loss())
    options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    expected = one_process.fit(reference, x, y, **options)["loss"]
    model = Pipelined(net(), schedule="microbatch", microbatches=2, cuts=["inner"],
                      grid=open_grid(2))  # fmt: skip
    model.compile("adam", nets.loss())
    losses = model.fit(x, y, **options).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=2e-2)
