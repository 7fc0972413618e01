"""Sharded training that must fail: ranks that differ, a full disk, and at last a rank that dies."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from tests.faults.job import RANK, attempt

_CLONE_NEWNS = 0x00020000  # from <sched.h>

#: On rank 1 a file system of 64 KiB, which no other process sees: made before there are threads.
small = tempfile.mkdtemp(dir=sys.argv[1])
if RANK == 1 and "small" in sys.argv[2:]:
    assert ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", small], check=True)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import ringar  # noqa: E402
from tests.keras import common  # noqa: E402


def fit(callbacks: Any, **options: Any) -> None:
    model = common.dense_model(seed=0)
    model.compile(ringar.DistributedOptimizer("adam", **{"shard": "optimizer", **options}), "mse")
    model.fit(common.own_batches(common.regression(48)), verbose=0, callbacks=callbacks)


def differ(name: str, value: Any, with_callback: bool = True) -> None:
    callbacks = [ringar.callbacks.Distributed()] if with_callback else []
    fit(callbacks, **({name: value} if RANK == 0 else {}))


def fill_the_disk() -> None:
    variable = keras.Variable(np.zeros(1 << 16, np.float32))
    adam = keras.optimizers.Adam(0.1)
    optimizer = ringar.DistributedOptimizer(
        adam, shard="optimizer", offload="disk", offload_folder=small
    )
    optimizer.apply([tf.ones(1 << 16)], [variable])


def die_in_a_step() -> None:
    def perhaps_die(number: np.ndarray) -> np.ndarray:
        if RANK == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    variables = [keras.Variable(np.ones(1 << 16, np.float32)) for _ in range(3)]
    adam = keras.optimizers.Adam(0.1)
    optimizer = ringar.DistributedOptimizer(
        adam, shard="gradients", offload="disk", bucket_bytes=1 << 18
    )
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step(number: tf.Tensor) -> None:
        gradients: list[Any] = [tf.sin(v.value) for v in variables]
        probe = tf.numpy_function(perhaps_die, [number], tf.float32)
        gradients[0] = gradients[0] * tf.ensure_shape(probe, [])  # that of the last bucket
        optimizer.apply(gradients, variables)

    for number in range(100):
        step(tf.constant(float(number)))


ringar.init(deadline=30)
grid = ringar.parallel.Grid(model=1)
attempt("shard_ranks", lambda: differ("shard_ranks", "host"))
attempt("offload", lambda: differ("offload", "disk"))
attempt("offload, no callback", lambda: differ("offload", "disk", with_callback=False))
attempt("grid", lambda: differ("grid", grid))
if "small" in sys.argv[2:]:
    attempt("full disk", fill_the_disk)
# The launcher ends the job at once, before the others have written down what they saw.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt("death", die_in_a_step)
