"""Jobs of Horovod's: elastic ones (scripts/elastic.py), and those of MPI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin import run_job
from tests.plugin.jobs import JobResult

pytestmark = [pytest.mark.job, pytest.mark.deadline(180)]


def test_training_goes_on_after_a_loss(tmp_path: Path) -> None:
    script = Path(__file__).parent / "scripts" / "elastic.py"
    job = run_job(
        3,
        script,
        launcher_args=["--min-np", "2"],
        deadline=150,
        env={"RINGAR_GRACE_SCALE": "0.2", "KILLED": str(tmp_path / "killed")},
    ).check()
    assert "going back to the last commit" in job.stderr
    lines = {line[4:] for line in job.stdout.splitlines()}
    assert "fit: epoch 4, weights 1, size 3" in lines, job
    assert "variables: 6.0 6 {'internal': True, 'updated': True}" in lines, job
    assert "own: 2 11" in lines, job


def run_on_hosts(np: int, script: str, folder: Path, *options: str) -> JobResult:
    """Run a script on the hosts that it writes itself; 127.0.0.2 is reached by a stand-in for ssh.

    At the beginning there is this host alone, with `np` slots.
    """
    (folder / "hosts").write_text(f"localhost:{np}\n")
    for name, text in (
        ("discover", f"cat {folder}/hosts"),
        ("reach", f'echo "$1" >>{folder}/reached; shift; export IS_OTHER=1; exec sh -c "$*"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    hosts = ["--min-np", "1", "--max-np", "3", "--host-discovery-script", str(folder / "discover")]
    return run_job(
        np,
        Path(__file__).parent / "scripts" / script,
        launcher_args=[*hosts, "--ssh-command", str(folder / "reach"), *options],
        deadline=170,
        env={"RINGAR_GRACE_SCALE": "0.2", "FOLDER": str(folder)},
    )


@pytest.mark.deadline(200)
def test_hosts_are_added_and_removed(tmp_path: Path) -> None:
    """Until the limit of resets is reached: scripts/hosts_change.py."""
    job = run_on_hosts(1, "hosts_change.py", tmp_path, "--reset-limit", "3").check(1)
    assert sorted({line[4:] for line in job.stdout.splitlines()}) == [
        "done: rank 0 of 2, sizes [1, 2, 1, 2]",
        "done: rank 1 of 2, sizes [1, 2, 1, 2]",
        "init: 0 of 1, HOROVOD_RANK 0 of 1",
        "init: 1 of 2, HOROVOD_RANK 1 of 2",
        "phase 0: size 1, rate 1, values 1",
        "phase 1: size 2, rate 2, values 1",
        "phase 2: size 2, rate 2, values 1",
    ], job
    assert "expected at most 3 worlds after the first (--reset-limit)" in job.stderr, job
    assert set((tmp_path / "reached").read_text().split()) == {"127.0.0.2"}


@pytest.mark.deadline(200)
def test_ranks_fail_and_join_while_a_loop_runs(tmp_path: Path) -> None:
    """A host that fails pauses for longer each time; drift ends all: scripts/tape_of_hosts.py."""
    job = run_on_hosts(2, "tape_of_hosts.py", tmp_path).check(1)
    assert {line[4:] for line in job.stdout.splitlines()} >= {
        "init: 2 of 3, on other True",
        "phase 0: size 2, rate 2, values 1",
        "phase 1: size 3, rate 3, values 1",
        "phase 2: size 3, rate 3, values 1",
    }, job
    failure = r"on 127.0.0.2\) failed with exit code 3; 2 ranks of its world are left(.*)"
    assert re.findall(failure, job.stderr) == ["", "; its slot is not used for 2 s"], job
    drift = (
        r"rank {} \| elastic job: expected the same \S+ \(digest of weight 0\) on every rank; "
        r"received"
    )
    assert all(re.search(drift.format(rank), job.stderr) for rank in range(3)), job


LOST = """
import sys
import tensorflow as tf
import ringar.horovod.tensorflow as hvd
from ringar.horovod.common.exceptions import HorovodInternalError

hvd.init()
if hvd.rank() == 1:
    sys.exit(0)
handle = hvd.allreduce_async(tf.ones(3), name="late")
try:
    hvd.synchronize(handle)
except HorovodInternalError as error:
    print("lost:", error)
"""


def test_a_handle_tells_of_a_lost_rank() -> None:
    job = run_job(2, LOST, deadline=60).check()
    assert re.search(r'lost: .*rank 0 \| allreduce "late".* rank 1 has left', job.stdout), job


@pytest.mark.slow
def test_communicators_of_mpi() -> None:
    script = Path(__file__).parent / "scripts" / "communicators.py"
    job = run_job(3, script, launcher_args=["--launcher", "mpirun"], deadline=100).check()
    lines = sorted(line[4:] for line in job.stdout.splitlines())
    assert lines == [
        "rank 0 in [0, 2], its number 0",
        "rank 1 in [1], its number 0",
        "rank 2 in [0, 2], its number 1",
    ]
