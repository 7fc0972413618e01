"""Faults after which the same processes can go on: late, stopped and leaving ranks; forks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import ringar
from tests.faults.job import RANK, SIZE, attempt, folder, say, wait_for, works
from tests.faults.scripts.loops import FOREVER, LOOPS, Loop, signal_myself

ODD = RANK == 1
OTHERS = [r for r in range(SIZE) if r != 1]


def restart(deadline: float = 30.0, stall_warning: float = 20.0) -> None:
    ringar.shutdown()
    ringar.init(deadline=deadline, stall_warning=stall_warning)


def meet_the_others(event: str) -> None:
    """Waits until all but rank 1 have come here: who goes on at once may itself be missed."""
    say(f"{event}: {RANK}")
    for r in OTHERS:
        wait_for(f"{event}: {r}")


def without_rank_1() -> None:
    """Rank 1 calls init only after the others have given up; then all begin again."""
    if ODD:
        for r in OTHERS:
            wait_for(f"not started: {r}")
        attempt("too late", lambda: ringar.init(start_timeout=1.5))
        say("seen by 1")
    else:
        attempt("never came", lambda: ringar.init(start_timeout=1.5))
        attempt("rank after that", ringar.rank)
        say(f"not started: {RANK}")
        wait_for("seen by 1")
    restart()
    attempt("after never came", works)


def delay() -> None:
    restart(stall_warning=0.3)
    ringar.allreduce(np.ones(3, np.float32), name="early")
    if ODD:
        time.sleep(1.0)
    attempt("late", lambda: ringar.allreduce(np.ones(5, np.float32), name="slow"))
    attempt("after late", works)


def leaving(name: str, loop: Loop) -> None:
    """Rank 1 shuts ringar down while the others loop."""
    if ODD:
        loop(20)
        ringar.shutdown()
    else:
        attempt(f"left, {name}", lambda: loop(FOREVER))
        attempt(f"left, {name}, again", lambda: ringar.allreduce(np.ones(3)))
        meet_the_others(f"left, {name}")
    restart()
    attempt(f"after left, {name}", works)


def chain() -> None:
    """Rank 1 leaves, rank 0 finds out and leaves, and only then does rank 2 look."""
    if ODD:
        ringar.shutdown()
    elif RANK == 0:
        attempt("first to know", works)
        ringar.shutdown()
        say("rank 0 has left")
    else:
        wait_for("rank 0 has left")
        attempt("last to know", works)
        say("rank 2 knows")
    wait_for("rank 2 knows")
    restart()
    attempt("after chain", works)


def stopping(name: str, loop: Loop) -> None:
    """Rank 1 gets SIGSTOP while all loop, and goes on when the others have given up."""
    restart(deadline=1.5)
    if ODD:
        (folder() / f"pid, {name}").write_text(str(os.getpid()))
        signal_myself(signal.SIGSTOP, 0.3)
    attempt(f"stopped, {name}", lambda: loop(FOREVER))
    if not ODD:
        meet_the_others(f"stopped, {name}")
    if RANK == 0:
        os.kill(int((folder() / f"pid, {name}").read_text()), signal.SIGCONT)
    if ODD:
        say(f"awake, {name}")
    wait_for(f"awake, {name}")
    restart()
    attempt(f"after stopped, {name}", works)


def failing_function() -> None:
    """An exception between two collectives of a function: on all ranks, then on rank 1 alone."""

    @tf.function(autograph=False)
    def function(limit: tf.Tensor) -> tf.Tensor:
        x = ringar.allreduce(tf.ones(4), ringar.Sum, name="first")
        with tf.control_dependencies([tf.debugging.assert_less(limit, 5, "too much")]):
            x = tf.identity(x)
        return ringar.allreduce(x, ringar.Sum, name="second")

    attempt("assertion on all", lambda: function(tf.constant(7)))
    attempt("after assertion on all", works)
    attempt("assertion on one", lambda: function(tf.constant(7 if ODD else 1)))
    if not ODD:
        meet_the_others("assertion on one")
    restart()
    attempt("after assertion on one", works)


def starting_again() -> None:
    for i in range(5):
        attempt(f"restart {i}", restart)
        attempt(f"after restart {i}", works)


def _in_child(connection: Callable[[object], None]) -> None:
    try:
        ringar.allreduce(np.ones(3))
    except ringar.errors.NotInitializedError as error:
        connection(str(error))


def forking() -> None:
    """Children that compute, end, are killed, or try to be a rank, while rank 0 waits."""
    context = multiprocessing.get_context("fork")

    def fork_and_join() -> None:
        parent_end, child_end = context.Pipe()
        child = context.Process(target=_in_child, args=(child_end.send,))
        child.start()
        assert parent_end.poll(10), "the child said nothing"
        assert "a process that a rank" in parent_end.recv()
        child.join(10)
        assert child.exitcode == 0

    def fork_and_kill() -> None:
        child = context.Process(target=time.sleep, args=(60,))
        child.start()
        child.kill()
        child.join(10)
        assert child.exitcode == -signal.SIGKILL

    def run_program() -> None:
        command = [sys.executable, "-S", "-c", "print('hello')"]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"hello\n"

    for function in (fork_and_join, fork_and_kill, run_program):
        if RANK > 0:
            attempt(function.__name__, function)
        attempt(f"after {function.__name__}", works)


def in_loops() -> None:
    for name, make in LOOPS.items():
        loop = make()
        loop(3)
        leaving(name, loop)
        stopping(name, loop)


without_rank_1()
delay()
failing_function()
starting_again()
chain()
forking()
in_loops()
