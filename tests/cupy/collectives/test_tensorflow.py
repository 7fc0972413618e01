"""TensorFlow's tensors on a real GPU: through the host, and in compiled functions through NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.cupy.collectives.common import Gpu, StandIn

MODES: dict[str, Callable[[Any], Any]] = {
    "eager": lambda function: function,
    "graph": tf.function,
    "compiled": lambda function: tf.function(function, jit_compile=True),
}


@pytest.fixture(autouse=True)
def _on_the_gpu(gpu: Gpu) -> Iterator[None]:
    if isinstance(gpu, StandIn):
        pytest.skip("no GPU that TensorFlow sees")
    if not tf.config.list_physical_devices("GPU"):
        pytest.fail("expected a GPU that TensorFlow sees; pip install 'tensorflow[and-cuda]'")
    with tf.device("/GPU:0"):
        yield


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_collectives(mode: str, dtype: str) -> None:
    ranks, rank = ringar.size(), ringar.rank()
    rows = np.arange(2 * ranks * 3).reshape(2 * ranks, 3).astype(dtype)
    part = slice(2 * rank, 2 * rank + 2)

    def all_of_them(tensor: tf.Tensor) -> list[tf.Tensor]:
        return [
            ringar.allreduce(tensor, ringar.Sum),
            *ringar.grouped_allreduce([tensor, tensor[:1]], ringar.Max),
            ringar.reducescatter(tensor, ringar.Sum),
            ringar.allgather(tensor),
            ringar.broadcast(tensor, ranks - 1),
            ringar.alltoall(tensor),
        ]

    total = ranks * rows + rows.dtype.type(sum(range(ranks)))
    largest = rows + rows.dtype.type(ranks - 1)
    expected = [
        total,
        largest,
        largest[:1],
        total[part],
        np.concatenate([rows + rows.dtype.type(r) for r in range(ranks)]),
        largest,
        np.concatenate([rows[part] + rows.dtype.type(r) for r in range(ranks)]),
    ]
    function = MODES[mode](all_of_them)
    for _ in range(3):
        results = function(tf.constant(rows + rows.dtype.type(rank)))
        for result, answer in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.numpy(), answer)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_training_keeps_the_ranks_together(jit_compile: bool) -> None:
    """The steps are those of one process on all examples, in float32 to 1e-4."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def model(optimizer: Any) -> Any:
        keras.utils.set_random_seed(2)
        net = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
        )
        net.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
        return net

    single = model(keras.optimizers.SGD(0.05))
    single.fit(x, y, batch_size=64, epochs=10, shuffle=False, verbose=0)
    share = 64 // ringar.size()
    part = slice(share * ringar.rank(), share * (ringar.rank() + 1))
    together = model(ringar.DistributedOptimizer(keras.optimizers.SGD(0.05)))
    together.fit(x[part], y[part], batch_size=share, epochs=10, shuffle=False, verbose=0)
    if 64 % ringar.size() == 0:
        for a, b in zip(single.get_weights(), together.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
    for array in together.get_weights():
        np.testing.assert_array_equal(ringar.broadcast(array, 0), array)


def test_an_error_of_one_rank_reaches_all_in_the_same_step() -> None:
    if ringar.size() == 1:
        pytest.skip("one rank agrees with itself")
    function = tf.function(lambda t: ringar.allreduce(t, ringar.Sum), jit_compile=True)
    with pytest.raises(tf.errors.OpError, match="expected the same collective, shapes"):
        function(tf.ones([3 + ringar.rank()]))
    assert ringar.allreduce(np.ones(1), ringar.Sum).tolist() == [ringar.size()]
