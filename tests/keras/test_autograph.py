"""AutoGraph rewrites the functions of the user, and none of ringar's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import ringar
import ringar.horovod.tensorflow as hvd

pytestmark = [pytest.mark.ranks(1), pytest.mark.usefixtures("initialized")]


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that AutoGraph rewrites in the test."""
    functions: list[Any] = []
    original: Callable[..., Any] = api._convert_actual

    def noting(entity: Any, context: Any) -> Any:
        functions.append(entity)
        return original(entity, context)

    monkeypatch.setattr(api, "_convert_actual", noting)
    return functions


def loss_of(outputs: tf.Tensor) -> tf.Tensor:
    """Return the loss, by an `if` that AutoGraph has to rewrite."""
    loss = tf.reduce_mean(outputs**2)
    if loss > 1.0:
        loss = tf.sqrt(loss)
    return loss


class Weighing(ringar.layers.SyncBatchNormalization):
    """A layer of the user that is one of ringar's."""

    def weigh(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return half of what is positive, by an `if`."""
        if tf.reduce_sum(outputs) > 0:
            outputs = outputs / 2
        return outputs


def test_a_step_of_the_user_rewrites_nothing_of_ringar(rewritten: list[Any]) -> None:
    layer = Weighing()
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), layer])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1))

    def average(value: tf.Tensor) -> tf.Tensor:
        return ringar.allreduce(value, ringar.Average)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(layer.weigh(model(x, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        ringar.broadcast_variables(model.variables)
        return hvd.allreduce(average(loss), op=hvd.Sum)

    assert np.isfinite(step(tf.ones([4, 3])))
    assert {function.__module__ for function in rewritten} == {__name__}
    assert {step.python_function, loss_of, layer.weigh, average} == set(rewritten)
