"""Nobody leaves a barrier before everybody has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

import ringar


def come_late_and_look(barrier: object, folder: Path, turn: str) -> None:
    """One rank after the other is the last to come; it must be there when the others go on."""
    for straggler in range(ringar.size()):
        if ringar.rank() == straggler:
            time.sleep(0.05)
        (folder / f"{turn}-{straggler}-{ringar.rank()}").touch()
        barrier()  # type: ignore[operator]
        came = len(list(folder.glob(f"{turn}-{straggler}-*")))
        assert came == ringar.size()


@pytest.mark.parametrize("way", ["eager", "graph", "compiled"])
def test_nobody_goes_on_early(way: str, shared_tmp_path: Path) -> None:
    def wait() -> tf.Tensor:
        ringar.barrier()
        return tf.constant(0)

    if way == "graph":
        wait = tf.function(wait)
    elif way == "compiled":
        wait = tf.function(wait, jit_compile=True)
    wait()
    come_late_and_look(wait, shared_tmp_path, way)


def test_with_a_name() -> None:
    ringar.barrier(name="a name with words")
    wait: Callable[[], object] = ringar.barrier
    assert wait() is None


def test_stands_between_other_collectives_of_a_graph() -> None:
    @tf.function
    def step(tensor: tf.Tensor) -> tf.Tensor:
        first = ringar.allreduce(tensor, ringar.Sum)
        ringar.barrier()
        return first + ringar.allreduce(tensor, ringar.Max)

    for _ in range(20):
        assert step(tf.constant(1.0)).numpy() == ringar.size() + 1
