"""Jobs of Horovod's: elastic ones (scripts/elastic.py), and those of MPI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin import run_job

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
