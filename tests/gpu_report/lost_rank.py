"""A rank that dies between two compiled collectives: the others learn it, and by name.

ringarrun -np 2 python -m tests.gpu_report.lost_rank
"""

from __future__ import annotations

import os
import time

import tensorflow as tf

import ringar
from ringar.errors import RingarError

PATIENCE = 30.0
"""Seconds in which a rank must have heard."""


def main() -> None:
    ringar.init()
    last = ringar.size() - 1
    total = tf.function(lambda x: ringar.allreduce(x, ringar.Sum), jit_compile=True)
    expected = float(ringar.size())
    assert total(tf.ones([1000]))[0] == expected
    if ringar.rank() == last:
        os._exit(0)
    start = time.monotonic()
    try:
        total(tf.ones([1000])).numpy()
    except (tf.errors.OpError, RingarError) as error:
        text = str(error)
    else:
        text = "no error"
    seconds = time.monotonic() - start
    assert f"rank {last}" in text, f"expected an error about rank {last}, received {text}"
    assert seconds < PATIENCE, f"expected an error within {PATIENCE} s, it took {seconds:.1f} s"
    if ringar.rank() == 0:
        print(f"the others knew after {seconds:.1f} s", flush=True)
    os._exit(0)  # a job that has lost a rank


if __name__ == "__main__":
    main()
