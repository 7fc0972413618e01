"""Results in the host's segment outlive ringar, whatever the size of its pool."""

from __future__ import annotations

import pytest

from tests.plugin import fast_if, run_job

pytestmark = pytest.mark.job

OUTLIVES = """
import os
import numpy as np
import tensorflow as tf
import ringar

N = 200_000


def results_outlive_shutdown():
    ringar.init()
    rank, size = ringar.rank(), ringar.size()
    total = size * (size + 1) // 2
    ones = np.full(N, rank + 1, np.float32)
    tensor = tf.constant(ones)
    results = []
    for _ in range(8):  # more than the pool of 3 MB holds
        results += [ringar.allreduce(ones, ringar.Sum), ringar.allreduce(tensor, ringar.Sum)]
    child = os.fork()
    if child == 0:
        right = all((np.asarray(result) == total).all() for result in results[::2])
        os._exit(0 if right else 1)
    for result in results[::2]:
        result += 1
    assert os.waitpid(child, 0)[1] == 0
    ringar.shutdown()
    for array, reduced in zip(results[::2], results[1::2]):
        assert (array == total + 1).all() and (reduced.numpy() == total).all()
    ringar.init()
    again = ringar.allreduce(ones, ringar.Sum)
    for array, reduced in zip(results[::2], results[1::2]):
        assert (array == total + 1).all() and (reduced.numpy() == total).all()
    del results, array, reduced
    assert (again == total).all()
    ringar.shutdown()
    assert (again == total).all()


for limit in ("0", "3000000", "1000000000"):
    os.environ["RINGAR_OUTPUT_POOL"] = limit
    results_outlive_shutdown()
"""


@pytest.mark.parametrize("ranks", [fast_if(False, 2), 3])
def test_memory_outlives_shutdown(ranks: int) -> None:
    run_job(ranks, OUTLIVES).check()
