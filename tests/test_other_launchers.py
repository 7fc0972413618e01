"""Processes of other launchers, which ringar does not bring together: each says so, once."""

from __future__ import annotations

import json
import re

import pytest

from ringar.job import other_launchers
from tests.launchers.helpers import launch, shell
from tests.plugin import run_job

TWO_WORKERS = {"worker": ["h1:2222", "h2:2222"], "evaluator": ["h3:1"], "ps": ["h3:2"]}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}

JOB = """
import ringar

for _ in range(2):
    ringar.init()
    print("size", ringar.size())
    ringar.shutdown()
"""


@pytest.mark.parametrize(
    ("environ", "pattern", "command"),
    [
        (TORCHRUN, "torchrun, .* 4 processes .WORLD_SIZE=4.", "-np 4 t.py"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "horovodrun has started 2", "-np 2 t.py"),
        ({"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2"}, "JAX", "-np 2 t.py"),
        ({"SLURM_NTASKS": "3"}, "SLURM's job has 3 tasks", "-np 3 t.py"),
        (
            {"TF_CONFIG": json.dumps({"cluster": TWO_WORKERS})},
            "TF_CONFIG names 2",
            "-H h1:1,h2:1 t.py",
        ),
        (
            {"TF_CONFIG": json.dumps({"cluster": {"chief": ["h:1"], "worker": ["h:2", "h:3"]}})},
            "TF_CONFIG names 3",
            "-np 3 t.py",
        ),
    ],
)
def test_others_are_known_by_their_variables(
    environ: dict[str, str], pattern: str, command: str
) -> None:
    start = other_launchers.of_job(environ)
    assert start is not None
    assert re.search(pattern, start.origin)
    assert start.command(["t.py"]) == f"ringarrun {command}"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_NTASKS": "1"},
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": json.dumps({"cluster": {"worker": ["h1:2222"], "ps": ["h3:2"]}})},
        {"TF_CONFIG": json.dumps({"task": {"type": "worker"}})},
    ],
)
def test_a_process_alone(environ: dict[str, str]) -> None:
    assert other_launchers.of_job(environ) is None
    assert other_launchers.of_launcher(environ) is None


@pytest.mark.job
def test_a_process_of_another_launcher_warns_once_that_it_trains_alone() -> None:
    result = run_job(None, JOB, env=dict(TORCHRUN)).check()
    assert result.stdout == "size 1\n" * 2
    assert result.stderr.count("rank 0 | ringar.init() makes a job of one rank here") == 1
    assert (
        "script.py" in result.stderr.partition("Start one job of all of them: ringarrun -np 4")[2]
    )


@pytest.mark.job
@pytest.mark.parametrize("environ", [TORCHRUN, {"OMPI_COMM_WORLD_SIZE": "2"}])
def test_a_launcher_below_another_one_warns(environ: dict[str, str]) -> None:
    result = launch("-np", "2", *shell("echo hi"), env=environ)
    assert (result.returncode, sorted(result.stdout.split())) == (0, ["[0]", "[1]", "hi", "hi"])
    assert result.stderr.startswith("ringarrun: warning: ")
    assert "For one job of all ranks start ringarrun once" in result.stderr


def test_a_launcher_is_one_of_several_for_mpi_and_srun_too() -> None:
    for variable in ("PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        start = other_launchers.of_launcher({variable: "2"})
        assert start is not None
        assert start.size == 2
    # An allocation of several tasks, in which ringarrun is the one process.
    assert other_launchers.of_launcher({"SLURM_NTASKS": "8"}) is None
