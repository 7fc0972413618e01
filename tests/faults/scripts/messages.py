"""Rank 1 ends, or does not come, while rank 0 exchanges messages with it, and rank 2 with rank 0.

The others go on to their end with the exception that they got, as programs do that catch nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import ringar
from tests.faults.job import RANK, attempt, record, say, wait_for

_, FOLDER, HOW, KIND = sys.argv
COUNT = 20
DEADLINE = 1.5 if HOW == "deadline" else 30.0
SPEC = tf.TensorSpec([None, 1000])


def as_asked(function: Callable[[], object]) -> Callable[[], object]:
    return tf.function(function, autograph=False) if KIND == "function" else function


def send(to: int) -> None:
    array = np.ones((100, 1000), np.float32)
    ringar.send(array if KIND == "numpy" else tf.constant(array), to, name="loop")


def recv(source: int) -> tf.Tensor:
    return ringar.recv(SPEC, source, name="loop")


def count_until_it_fails(step: Callable[[], object]) -> None:
    """Writes down how many went well."""
    done = 0
    try:
        while True:
            step()
            done += 1
    finally:
        record("count", kinds=[], message=str(done), seconds=0.0)


def be_rank_1() -> None:
    if HOW == "deadline":
        wait_for("rank 0 knows")
        return
    answer = as_asked(lambda: recv(0) if HOW == "receiver" else send(0))
    for _ in range(COUNT):
        answer()
    if HOW != "leaves":
        os.kill(os.getpid(), signal.SIGKILL)


ringar.init(deadline=DEADLINE)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if RANK == 1:
    be_rank_1()
    sys.exit()
if RANK == 0:
    message = as_asked(lambda: send(1) if HOW == "receiver" else recv(1))
    attempt("loop", lambda: count_until_it_fails(message))
    say("rank 0 knows")
elif HOW != "deadline":
    attempt("loop", as_asked(lambda: recv(0)))
sys.exit(1)
