"""A rank that waits for another leaves the machine and its own process to those that work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ringar
from tests.collectives import common

PAUSE = 0.5

pytestmark = pytest.mark.ranks(2, 3, 4)


@pytest.mark.parametrize("count", [3, 100_000])
def test_costs_no_processor_time(
    mode: str, count: int, exchange: Callable[[Any], list[Any]]
) -> None:
    """It spins for microseconds and then sleeps: there may be more ranks than cores."""
    array = np.ones(count, np.float32)
    reduce = common.prepare(mode, lambda t: [ringar.allreduce(t, name="waited for")])
    reduce(array)
    exchange("warm")
    if ringar.rank() == 1:
        time.sleep(PAUSE)
    start, processor_time = time.monotonic(), time.process_time()
    reduce(array)
    waited, processor_time = time.monotonic() - start, time.process_time() - processor_time
    if ringar.rank() != 1:
        assert waited > PAUSE / 2
        assert processor_time < 0.3 * waited


def test_lets_other_threads_of_python_run(mode: str, exchange: Callable[[Any], list[Any]]) -> None:
    array = np.ones(3, np.float32)
    reduce = common.prepare(mode, lambda t: [ringar.allreduce(t, name="gil")])
    reduce(array)
    exchange("warm")
    turns, end = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not end.is_set():
            time.sleep(0.005)
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        if ringar.rank() == 1:
            time.sleep(PAUSE)
        reduce(array)
    finally:
        end.set()
        thread.join()
    assert turns > 10


def test_a_rank_can_be_late_again_and_again(mode: str) -> None:
    """Wake-ups are not lost: each is waited for asleep."""
    reduce = common.prepare(mode, lambda t: [ringar.allreduce(t, ringar.Sum)])
    start = time.monotonic()
    for turn in range(3 * ringar.size()):
        if turn % ringar.size() == ringar.rank():
            time.sleep(0.01)
        result = reduce(np.ones(3, np.float32))[0]
        assert result.tolist() == [ringar.size()] * 3
    assert time.monotonic() - start < 20
