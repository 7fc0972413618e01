"""Elastic jobs on processes that come and go: here the test starts and kills them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from ringar.errors import DeadlineError, RankError
from ringar.launchers.cluster.elastic_cluster import ElasticCluster, Limits
from tests.clusters.test_cluster import SERVES
from tests.elastic import functions
from tests.elastic.functions import add_up
from tests.plugin.jobs import PYTHONPATH

pytestmark = [pytest.mark.job, pytest.mark.slow, pytest.mark.deadline(150)]

cloudpickle.register_pickle_by_value(functions)  # ranks do not import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])

QUICK = {"RINGAR_GRACE_SCALE": "0.2"}


@contextlib.contextmanager
def members(cluster: ElasticCluster) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list of members, to which `start` adds others."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start(cluster: ElasticCluster, index: int, gpus: str | None = None) -> subprocess.Popen[bytes]:
    text = SERVES.format(repr(cluster.variable), index, repr("127.0.0.1"))
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    if gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpus
    return subprocess.Popen([sys.executable, "-c", text], env=env)


def test_members_are_lost_and_join(tmp_path: Path) -> None:
    """Of two members the first is killed, through which the host was reached; a third one comes."""
    with ElasticCluster(Limits(1, 2, timeout=60)) as cluster, members(cluster) as processes:
        processes += [start(cluster, 0), start(cluster, 1)]
        cluster.wait(2, 60)

        def disturb() -> None:
            while not (tmp_path / "two").exists():
                time.sleep(0.05)
            processes[0].kill()
            while not (tmp_path / "one").exists():
                time.sleep(0.05)
            processes.append(start(cluster, 2))

        threading.Thread(target=disturb, daemon=True).start()
        results = cluster.call(counts, [str(tmp_path)], env=QUICK, options=[], timeout=120)
    assert [(rank, rest) for rank, _, rest in results] == [(0, 0), (1, 0)]
    sizes = results[0][1]
    assert sizes[0] == sizes[-1] == 2, sizes
    assert 1 in sizes


def counts(folder: str) -> tuple[int, list[int], int]:
    """Train until the world has had two ranks, one, and two again, and say so in files."""
    from pathlib import Path

    import numpy as np

    import ringar

    ringar.init(deadline=30)

    @ringar.elastic.run
    def train(state: ringar.elastic.ObjectState) -> None:
        state.sizes = [*state.sizes, ringar.size()]
        done = 0
        while not (1 in state.sizes and ringar.size() == 2 and done > 4):
            state.total += float(ringar.allreduce(np.float32(1.0), name="step"))
            state.steps += 1
            done += 1
            state.commit()
            if done == 5:
                Path(folder, {1: "one", 2: "two"}[ringar.size()]).touch()
            time.sleep(0.02)

    state = ringar.elastic.ObjectState(steps=0, total=0.0, sizes=[])
    train(state)
    return ringar.rank(), state.sizes, round(state.total - state.steps)


def test_a_rank_that_is_killed_is_replaced_on_its_member(tmp_path: Path) -> None:
    """And sees the member's GPUs."""
    with ElasticCluster(Limits(1, 3)) as cluster, members(cluster) as processes:
        processes += [start(cluster, 0, "0,1"), start(cluster, 1, "2,3")]
        cluster.wait(2, 60)
        assert [host.name for host in cluster._broker.hosts()] == ["0@127.0.0.1", "1@127.0.0.1"]
        results = cluster.call(with_gpus, [str(tmp_path)], env=QUICK, options=[], timeout=120)
    assert [result[0] for result, _ in results] == [0, 1]
    assert {gpus for _, gpus in results} == {"0,1", "2,3"}


def with_gpus(folder: str) -> tuple[tuple[int, list[int], int], str]:
    return add_up(folder, 2), os.environ["CUDA_VISIBLE_DEVICES"]


def test_errors() -> None:
    with ElasticCluster(Limits(2, 3, timeout=1)) as cluster, members(cluster) as processes:
        processes.append(start(cluster, 0))
        text = "expected 2 processes of the cluster within 5 s, received 1"
        with pytest.raises(DeadlineError, match=text):
            cluster.wait(3, 5)
        processes.append(start(cluster, 1))
        cluster.wait(2, 60)
        lose = threading.Timer(0, lambda: None)

        def kill_one() -> None:
            processes[1].send_signal(signal.SIGKILL)

        lose = threading.Timer(15, kill_one)
        lose.start()
        with pytest.raises(RankError, match=r"expected at least 2 ranks \(--min-np\), received 1"):
            cluster.call(endless, env=QUICK, options=[], timeout=120)


def endless() -> None:
    import ringar

    ringar.init()

    @ringar.elastic.run
    def train(state: ringar.elastic.ObjectState) -> None:
        while True:
            ringar.barrier()
            state.commit()
            time.sleep(0.02)

    train(ringar.elastic.ObjectState(step=0))
