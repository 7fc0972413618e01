"""The sizes of TensorFlow's pools: each case in a process of its own, since they start but once."""

from __future__ import annotations

import math
import os

import pytest

from ringar import threads
from tests.plugin import run_job

pytestmark = pytest.mark.ranks(1)

USABLE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("local_size", [1, 2, 4, 1000])
def test_share_of_the_cores(local_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(threads.BOUND_CPUS_VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 4096)  # online, and not for this process
    for quota, usable in ((math.inf, 8), (9.0, 8), (1.5, 2)):
        monkeypatch.setattr(threads, "quota", lambda quota=quota: quota)
        monkeypatch.delenv(threads.BOUND_CPUS_VARIABLE, raising=False)
        assert threads.cores(local_size) == max(1, usable // local_size)
        assert threads.are_cores_shared(local_size) == (local_size > min(quota, 8))
        # A bound rank has the share that its launcher has counted.
        for share, cores in (("8", 8), ("1", 1), ("2.66667", 2), ("0.5", 1)):
            monkeypatch.setenv(threads.BOUND_CPUS_VARIABLE, share)
            assert threads.cores(local_size) == cores
            is_shared = share == "0.5" or local_size > quota
            assert threads.are_cores_shared(local_size) == is_shared


def run(program: str, **env: str) -> str:
    """What the program prints, in a plain process that has set TensorFlow's pools up."""
    head = "import os\nimport tensorflow as tf\nfrom ringar import threads\n"
    tail = "\nprint(threads.intra_op_threads(), threads.inter_op_threads())\n"
    return run_job(None, head + program + tail, env=env).check().stdout.strip()


@pytest.mark.job
def test_arguments_environment_and_defaults() -> None:
    # Numbers may change until the pools start, so one process can try many.
    program = """
def show(*args, **env):
    for name in ("RINGAR_INTRA_OP_THREADS", "RINGAR_INTER_OP_THREADS"):
        os.environ.pop(name, None)
    os.environ.update(env)
    threads.configure(*args)
    print(threads.intra_op_threads(), threads.inter_op_threads(), end=";")
os.sched_getaffinity = lambda _: set(range(8))
threads.quota = lambda: 8.0
show(None, None, 1)
show(None, None, 2)
show(None, None, 8)
show(5, None, 2)
show(None, 6, 2, RINGAR_INTRA_OP_THREADS="7", RINGAR_INTER_OP_THREADS="9")
show(0, 0, 2)
from tensorflow.python.eager import context
polls = lambda: not context.context().config.experimental.disable_thread_spinning
print(polls(), end=";")
show(None, None, 9)
print(polls(), tf.reduce_sum(tf.ones(3)).numpy(), end=";")
"""
    expected = ["0 0", "4 4", "1 2", "5 4", "7 6", "0 0", "True", "1 2", "False 3.0"]
    assert run(program).split(";")[:9] == expected


@pytest.mark.job
def test_pools_that_run_already() -> None:
    program = """
tf.constant(1) + 1
threads.configure(None, None, 2)  # a default that comes too late is no error
threads.configure(0, None, 1)  # nor is what runs already
for args in [(3, None, 1), (None, 5, 1)]:
    try:
        threads.configure(*args)
    except RuntimeError as error:
        print(str(error).split(":")[0], end=";")
"""
    warning = "comes too late"
    assert run(program) == f"intra_op_threads=3 {warning};inter_op_threads=5 {warning};0 0"


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (-1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="`intra_op_threads` must be None or an integer"):
            threads.configure(count, None)  # type: ignore[arg-type]
    monkeypatch.setenv(threads.INTER_OP_VARIABLE, "many")
    with pytest.raises(ValueError, match="RINGAR_INTER_OP_THREADS must be a number of threads"):
        threads.configure(None, None)


@pytest.mark.job
def test_ranks_share_the_cores() -> None:
    program = """
import ringar
ringar.init()
print(ringar.threads.intra_op_threads())
"""
    share = str(max(1, USABLE // 2))
    unbound = run_job(2, program, launcher_args=["--bind-to", "none", "--no-prefix"]).check()
    bound = run_job(2, program, launcher_args=["--no-prefix"]).check()
    assert unbound.stdout.split() == [share, share]
    assert all(int(number) >= int(share) for number in bound.stdout.split())
