"""Collectives of a graph that are held back by one before them, which is late or never comes."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import ringar
from tests.faults.job import attempt, works

LONG = 600_000  # elements: beyond what is run at once
SIDE = 1500
THREADS = int(sys.argv[2])


def slow(x: tf.Tensor) -> tf.Tensor:
    """A scalar that takes some tenths of a second to compute."""
    for _ in range(8):
        x = tf.linalg.matmul(x, x) / SIDE
    return x[0, 0]


@tf.function
def failing(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The second may come at once; what the first is computed from fails, after a while."""
    no_such_row = tf.gather(x, SIDE + tf.cast(slow(x), tf.int32))
    first = ringar.allreduce(tf.fill([LONG], no_such_row[0]), name="first")
    second = ringar.allreduce(tf.fill([LONG], x[0, 1]), name="second")
    return first, second


@tf.function
def short_behind_long(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The short one could run at once; with one thread, the long one's input needs that."""
    long = ringar.allreduce(tf.fill([LONG], slow(x)), ringar.Sum, name="long")
    short = ringar.allreduce(x[0, :3], ringar.Sum, name="short")
    return long, short


def in_order() -> None:
    x = tf.ones([SIDE, SIDE])
    for _ in range(3):
        long, short = short_behind_long(x)
        np.testing.assert_allclose(long, ringar.size())
        np.testing.assert_allclose(short, ringar.size())


tf.config.threading.set_inter_op_parallelism_threads(THREADS)
ringar.init(deadline=4, stall_warning=1, inter_op_threads=THREADS)
attempt("in order", in_order)
attempt("failed before", lambda: failing(tf.ones([SIDE, SIDE])))
attempt("works after it", works)
