"""Shutting down and starting again, in one process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.plugin import fixtures


def test_again_and_again() -> None:
    reduce = tf.function(lambda t: ringar.allreduce(t, ringar.Sum))
    compiled = tf.function(lambda t: ringar.allreduce(t, ringar.Sum), jit_compile=True)
    for turn in range(5):
        fixtures.restart()
        ones = np.full(40_000, turn, np.float32)
        expected = ones * ringar.size()
        assert (ringar.allreduce(ones, ringar.Sum) == expected).all()
        # Functions that were traced before still serve.
        assert (reduce(tf.constant(ones)).numpy() == expected).all()
        assert (compiled(tf.constant(ones)).numpy() == expected).all()


def test_initializing_twice_does_nothing() -> None:
    ringar.init(deadline=1e-9)
    assert ringar.allreduce(np.ones(1), ringar.Sum)[0] == ringar.size()
    assert ringar.is_initialized()


def test_between_shutdown_and_init(exchange: Callable[[Any], list[Any]]) -> None:
    ringar.shutdown()
    ringar.shutdown()
    assert not ringar.is_initialized()
    for call in (ringar.rank, ringar.size, ringar.local_rank, ringar.cross_size, ringar.barrier):
        with pytest.raises(ringar.errors.NotInitializedError, match=r"call ringar\.init\(\)"):
            call()
    assert ringar.global_process_set.process_set_id is None
    exchange("all are out")
    fixtures.initialize()
    assert ringar.global_process_set.ranks == list(range(ringar.size()))


def test_process_sets_do_not_outlive_their_job() -> None:
    before = ringar.add_process_set(list(range(ringar.size())))
    fixtures.restart()
    assert before.process_set_id is None
    with pytest.raises(ValueError, match="a process set that is in use"):
        ringar.allreduce(np.ones(1), process_set=before)
    after = ringar.add_process_set(before)
    assert ringar.allreduce(np.ones(1), ringar.Sum, process_set=after)[0] == ringar.size()
    ringar.remove_process_set(after)


def test_ranks_leave_at_different_times() -> None:
    """The last collective's result reaches a rank also when the others are gone already."""
    for turn in range(8):
        result = ringar.allreduce(np.full(200_000, turn, np.float32), ringar.Sum)
        if ringar.rank() == turn % ringar.size():
            time.sleep(0.03)
        fixtures.restart()
        assert result[-1] == turn * ringar.size()


def test_a_forked_child_is_no_rank() -> None:
    """It can neither use ringar nor, with its end, take the rank out of the job."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if "RINGAR_RANK" in os.environ:  # without a launcher it would be a job of its own
                ringar.init()  # does nothing, as in a worker of a pool
            ringar.barrier()
        except ringar.errors.NotInitializedError:
            ringar.shutdown()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    for _ in range(3):
        assert ringar.allreduce(np.ones(1), ringar.Sum)[0] == ringar.size()
