"""What ringar.stats() counts, against the formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.collectives.statistics import Traffic

pytestmark = pytest.mark.usefixtures("initialized")


def test_bytes_by_collective(size: int, rank: int) -> None:
    n, array = size, np.ones((12 * size, 5), np.float32)
    ringar.reset_stats()
    assert ringar.stats() == {}
    for _ in range(3):
        ringar.allreduce(array, ringar.Sum, name="a/loss")
    ringar.reducescatter(array, ringar.Sum, name="a/parts")
    ringar.allgather(array, name="b/maps")
    ringar.broadcast(array, n - 1, name="b/weights")
    ringar.alltoall(array, name="c/rows")
    ringar.alltoall(array, [12 * n if r == 0 else 0 for r in range(n)], name="c/to the first")
    ringar.barrier()
    k = array.nbytes
    expected = {
        "a/loss": Traffic(3, 3 * 2 * k * (n - 1) // n),
        "a/parts": Traffic(1, k * (n - 1) // n),
        "b/maps": Traffic(1, k * (n - 1)),
        "b/weights": Traffic(1, k if rank == n - 1 and n > 1 else 0),
        "c/rows": Traffic(1, k * (n - 1) // n),
        "c/to the first": Traffic(1, k if rank else 0),
        "barrier": Traffic(1, 0),
    }
    assert ringar.stats() == expected
    layers = ringar.stats(by="layer")
    assert layers["a"] == expected["a/loss"] + expected["a/parts"]
    assert set(layers) == {"a", "b", "c", "barrier"}
    assert (
        ringar.stats(by="collective")["alltoall"] == expected["c/rows"] + expected["c/to the first"]
    )


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "compiled"])
def test_steps_are_counted_whatever_way_they_run(size: int, jit: bool) -> None:
    @tf.function(jit_compile=jit)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ringar.allreduce(x, ringar.Sum, name="layer/sum")
        return tape.gradient(y, x)

    ringar.reset_stats()
    for _ in range(4):
        step(tf.ones([size, 3]))
    bytes_per_step = 4 * 2 * 12 * (size - 1)
    assert ringar.stats() == {
        "layer/sum": Traffic(4, bytes_per_step), "layer/sum/gradient": Traffic(4, bytes_per_step)
    }  # fmt: skip


def test_failed_collectives_are_not_counted(size: int) -> None:
    if size == 1:
        pytest.skip("one rank disagrees with nobody")
    ringar.reset_stats()
    fails: Callable[[], object] = lambda: ringar.allreduce(  # noqa: E731
        np.ones(1 + ringar.rank()), name="unequal"
    )
    with pytest.raises(ringar.errors.MismatchError):
        fails()
    assert ringar.stats() == {}


def test_bad_argument() -> None:
    with pytest.raises(ValueError, match=r"`by` must be one of name, layer, collective"):
        ringar.stats(by="bytes")
