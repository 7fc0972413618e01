"""A step on one core, where a Python function calls a collective behind one that is not issued."""

from __future__ import annotations

import os
import sys

import numpy as np
import tensorflow as tf

import ringar

SIDE = 300


def reduce(x: np.ndarray) -> np.ndarray:
    return ringar.allreduce(x, ringar.Sum, name="inner")


@tf.function
def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    for _ in range(4):
        x = tf.linalg.matmul(x, x) / SIDE
    long = ringar.allreduce(tf.fill([700_000], x[0, 0]), ringar.Sum, name="long")
    return long, tf.numpy_function(reduce, [y], tf.float32)


os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before TensorFlow makes its threads
threads = int(sys.argv[1])
ringar.init(deadline=3, stall_warning=1, inter_op_threads=threads or None)
try:
    long, short = step(tf.ones([SIDE, SIDE]), tf.ones([5]))
except tf.errors.OpError as error:
    print(error.message)
else:
    np.testing.assert_allclose(long, 1, rtol=1e-5)
    np.testing.assert_array_equal(short, 1)
    print("right")
