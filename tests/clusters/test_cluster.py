"""Jobs on processes that somebody else has started, as Ray and Spark do: here the test itself."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

import ringar
from ringar.errors import DeadlineError, RankError
from ringar.launchers.cluster.cluster import Cluster, Member
from ringar.launchers.function import executable
from ringar.launchers.function.rendezvous import meet
from ringar.spark import _Tasks
from tests.plugin.jobs import PYTHONPATH

pytestmark = [pytest.mark.job, pytest.mark.deadline(90)]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks do not import the tests

SERVES = "import sys; from ringar.launchers.cluster.member import serve; serve({}, {}, {})"


def whoami(word: str) -> tuple[str, int, str | None]:
    print("I am", os.environ["RINGAR_RANK"])
    return word + os.environ["RINGAR_RANK"], os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")


def fails() -> None:
    if os.environ["RINGAR_RANK"] == "1":
        raise KeyError("a word that is not there")
    time.sleep(30)


def dies() -> None:
    if os.environ["RINGAR_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)


class Counter:
    """What an executor makes on each rank."""

    def __init__(self, count: int, *, step: int) -> None:
        self.count, self.step = count, step

    def advance(self) -> int:
        self.count += self.step
        return self.count


@contextlib.contextmanager
def members(
    cluster: Cluster, count: int, host: str = "127.0.0.1", gpus: str = "{}"
) -> Iterator[list[int]]:
    """Start members, which have GPUs by their numbers; yield their processes."""
    processes = []
    for index in range(count):
        text = SERVES.format(repr(cluster.variable), index, repr(host))
        env = {**os.environ, "PYTHONPATH": PYTHONPATH, "CUDA_VISIBLE_DEVICES": gpus.format(index)}
        processes.append(subprocess.Popen([sys.executable, "-c", text], env=env))
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_functions_are_called_one_after_the_other(capfd: pytest.CaptureFixture[str]) -> None:
    with Cluster(2) as cluster, members(cluster, 2):
        with cluster.start({"RINGAR_TEST_WORD": "x"}, [], 30) as pool:
            first = pool.call(whoami, ["a"])
            second = pool.call(whoami, ["b"])
            assert [word for word, *_ in first] == ["a0", "a1"]
            assert [word for word, *_ in second] == ["b0", "b1"]
            assert [pid for _, pid, _ in first] == [pid for _, pid, _ in second]
            assert [gpus for *_, gpus in first] == ["0", "1"]
            pool.call(executable.make, [Counter, (5,), {"step": 2}])
            assert pool.call(executable.call, [Counter.advance]) == [7, 7]
            assert pool.call(executable.call, [Counter.advance, 1]) == [None, 9]
            with pytest.raises(TypeError, match="expected a function"):
                pool.call(None)  # type: ignore[arg-type]
        assert not pool.is_alive
    assert "[1] I am 1" in capfd.readouterr().out


def test_members_on_the_host_of_the_caller_run_its_ranks() -> None:
    """Spark may name hosts as they name themselves."""
    host = socket.gethostname()
    with Cluster(2) as cluster, members(cluster, 2, host), cluster.start({}, [], 30) as pool:
        assert [gpus for *_, gpus in pool.call(whoami, ["a"])] == ["0", "1"]


@pytest.mark.parametrize(
    ("member_gpus", "options", "rank_gpus"),
    [
        ("{0}0,{0}1", [], ["00,01", "10,11"]),  # two for each
        pytest.param("7", [], ["7", "7"], marks=pytest.mark.slow),  # a part of one
        pytest.param("", [], ["", ""], marks=pytest.mark.slow),
        ("{0}0,{0}1", ["--gpus", "all"], ["00,01,10,11"] * 2),
    ],
)
def test_ranks_see_the_gpus_of_their_members(
    member_gpus: str, options: list[str], rank_gpus: list[str]
) -> None:
    with Cluster(2) as cluster, members(cluster, 2, gpus=member_gpus):
        pool = cluster.start({}, options, 30)
        assert [gpus for *_, gpus in pool.call(whoami, ["a"])] == rank_gpus


def what_is_there() -> tuple[str, str]:
    import brought  # type: ignore[import-not-found]

    return brought.WORD, os.getcwd()


@pytest.mark.skipif(os.geteuid() != 0, reason="hides a folder from members: needs root")
def test_ranks_have_what_the_manager_has_brought_to_their_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its modules; and its folder, where the caller's is missing."""
    caller, folder = tmp_path / "caller" / "project", tmp_path / "there"
    caller.mkdir(parents=True)
    folder.mkdir()
    (folder / "brought.py").write_text("WORD = 'x'\n")
    monkeypatch.chdir(caller)
    with Cluster(1) as cluster:
        text = f"import sys; sys.path.append({str(folder)!r}); "
        text += SERVES.format(repr(cluster.variable), 0, "'127.0.0.1'")
        member_of = f"exec {sys.executable} -c {shlex.quote(text)}"
        hide = f"mount -t tmpfs none {caller.parent} && {member_of}"
        member = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", hide],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )
        try:
            pool = cluster.start({}, [], 30)
            assert pool.call(what_is_there) == [("x", str(folder))]
        finally:
            member.kill()
            member.wait()


def test_a_member_that_comes_too_late() -> None:
    """It ends at once, though its connection was accepted before the port was closed."""
    with Cluster(2) as cluster:
        broker = cluster._broker
    manager_end, member_end = socket.socketpair()
    thread = threading.Thread(
        target=broker._serve_member,
        args=(Member(0, "127.0.0.1", None, Connection(member_end.detach())),),
        daemon=True,
    )
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    manager_end.close()


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [(fails, KeyError, "a word that is not there"), (dies, RankError, "rank 1 of 2")],
)
def test_a_rank_that_fails_ends_the_job(
    function: object, error: type[Exception], text: str
) -> None:
    with Cluster(2) as cluster, members(cluster, 2):
        pool = cluster.start({}, [], 30)
        with pytest.raises(error, match=text):
            pool.call(function)  # type: ignore[arg-type]
        with pytest.raises(RankError, match="they have ended"):
            pool.call(whoami, ["a"])


def test_a_member_that_dies_ends_the_job() -> None:
    with Cluster(2) as cluster, members(cluster, 2) as pids:
        pool = cluster.start({}, [], 30)
        pool.call(whoami, ["a"])
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(RankError, match="127.0.0.1: the way to it"):
            pool.call(time.sleep, [30])


def test_a_function_that_takes_too_long() -> None:
    with Cluster(2) as cluster, members(cluster, 2):
        pool = cluster.start({}, [], 30)
        with pytest.raises(DeadlineError, match="still waiting for rank 0, 1"):
            pool.call(time.sleep, [30], timeout=1)
        with pytest.raises(ValueError, match="options of an elastic job"):
            cluster.start({}, ["--min-np", "1"], 30)
        with pytest.raises(ValueError, match="unknown option --no-such"):
            cluster.start({}, ["--no-such"], 30)


def test_spark_3_cancels_tasks_that_have_not_started() -> None:
    """It has no `cancelJobGroupAndFutureJobs`."""
    cancelled: list[str] = []
    of_spark_3 = SimpleNamespace(cancelJobGroup=cancelled.append)
    context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: of_spark_3))
    tasks = _Tasks(context, "test")
    tasks.cancel()
    assert cancelled == [tasks._group]


def test_spark_tells_why_it_has_ended_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the ranks is its consequence."""

    class EndedTasks(_Tasks):
        def start(self, *_: object) -> None:
            self._error = Exception("Task 1 failed 4 times")

    @contextlib.contextmanager
    def cluster(limits: object) -> Iterator[SimpleNamespace]:
        def call(*_: object, **__: object) -> None:
            raise RankError("all ranks are lost")

        yield SimpleNamespace(variable="", wait=lambda *_: None, call=call)

    context = SimpleNamespace(getConf=dict)
    monkeypatch.setattr(ringar.spark, "_active", lambda spark_context: context)
    monkeypatch.setattr(ringar.spark, "_Tasks", EndedTasks)
    monkeypatch.setattr(ringar.spark, "ElasticCluster", cluster)
    with pytest.raises(RuntimeError, match="Task 1 failed 4 times"):
        ringar.spark.run_elastic(print, num_proc=2)


def test_members_that_do_not_come() -> None:
    with Cluster(2) as cluster, members(cluster, 1):
        with pytest.raises(DeadlineError, match="expected 2 processes .* within 3 s, received 1"):
            cluster.start({}, [], 3)
        key, rest = cluster.variable.split(" ", 1)
        with pytest.raises(ConnectionError, match="rejected"):
            meet(f"{'00' * (len(key) // 2)} {rest}")
