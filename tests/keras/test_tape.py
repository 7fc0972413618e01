"""DistributedGradientTape: gradients come reduced out of it, in the structure of the sources."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar

pytestmark = pytest.mark.usefixtures("initialized")


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "jit"])
def test_gradients_are_averages(jit: bool | None, rank: int, size: int) -> None:
    weight, bias = tf.Variable([1.0, 2.0]), keras.Variable(3.0)

    def gradients() -> dict[str, tf.Tensor]:
        with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight) * (rank + 1.0) + bias.value * rank
        return tape.gradient(loss, {"weight": weight, "bias": bias})

    result = (gradients if jit is None else tf.function(gradients, jit_compile=jit))()
    mean = (size - 1) / 2
    np.testing.assert_allclose(result["weight"], [mean + 1] * 2, rtol=1e-6)
    np.testing.assert_allclose(result["bias"], mean, rtol=1e-6)


def test_tape_that_has_recorded(rank: int, size: int) -> None:
    x = tf.constant(2.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x * float(rank)
    tape = ringar.DistributedGradientTape(tape, op=ringar.Sum)
    for _ in range(2):
        assert float(tape.gradient(y, x)) == 4 * sum(range(size))
    assert tape.watched_variables() == ()


def test_none_and_sparse(rank: int, size: int) -> None:
    table, unused = tf.Variable(tf.zeros([size, 2])), tf.Variable(1.0)
    with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(tf.gather(table, [rank]))
    of_table, of_unused = tape.gradient(loss, [table, unused])
    assert of_unused is None
    assert isinstance(of_table, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(of_table), np.full([size, 2], 1 / size))


def test_wrapping_twice_is_an_error() -> None:
    tape = ringar.DistributedGradientTape(tf.GradientTape())
    with pytest.raises(ValueError, match="must not be distributed already"):
        ringar.DistributedGradientTape(tape)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_rows_of_a_loss_count_for_the_gradients_of_its_tape(
    graph: bool, rank: int, size: int
) -> None:
    x, rows, slope = tf.Variable(1.0), 1 + rank, 1.0 + rank
    loss = keras.losses.MeanSquaredError()

    def step() -> list[tf.Tensor]:
        with ringar.DistributedGradientTape(tf.GradientTape()) as outer:
            value = loss(tf.zeros([rows, 1]), slope * x * tf.ones([rows, 1]))
            with tf.GradientTape() as inner:
                other = x * x
            inner.gradient(other, x)  # it has no loss, and is not the tape that has one
        of_loss = outer.gradient(value, x)
        with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
            without = slope * x
        return [of_loss, tape.gradient(without, x)]

    of_loss, without = (tf.function(step) if graph else step)()
    slopes = np.arange(1.0, size + 1)
    np.testing.assert_allclose(of_loss, np.average(2 * slopes**2, weights=slopes), rtol=1e-6)
    np.testing.assert_allclose(without, slopes.mean(), rtol=1e-6)
