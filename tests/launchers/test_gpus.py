"""One GPU per rank: how they are dealt out, and what real ranks see. No GPU is needed for that."""

from __future__ import annotations

import sys

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.plan import gpus, job_plan
from ringar.launchers.plan.cpus import Cpu
from ringar.launchers.plan.job_plan import JobPlan
from ringar.launchers.plan.request import Request
from tests.launchers.helpers import launch, python
from tests.launchers.test_guard import SECOND_OF_THREE, guard
from tests.launchers.test_mpirun import MPIRUN, obstacle

SHOW = python(
    "import os; print(*(os.environ.get(n) for n in ('CUDA_VISIBLE_DEVICES', 'RINGAR_GPU')))"
)
TWO = {"CUDA_VISIBLE_DEVICES": "2,3"}
NCCL = "; between ranks on one GPU, NCCL needs to be 2.30 or later, with "


@pytest.mark.parametrize(
    ("visible", "size", "dealt"),
    [
        ((), 2, (None, None)),
        (("0", "1"), 2, ("0", "1")),
        (("3", "1", "0"), 2, ("3", "1")),
        (("GPU-a", "GPU-b"), 3, ("GPU-a", "GPU-b", "GPU-a")),
        (("5",), 2, ("5", "5")),
    ],
)
def test_deal(visible: tuple[str, ...], size: int, dealt: tuple[str | None, ...]) -> None:
    assert gpus.deal(visible, size) == dealt


def test_ranks_of_a_cluster_have_what_its_manager_gives_them() -> None:
    environ = {**TWO, gpus.OF_RANKS_VARIABLE: "2,3;;GPU-a"}
    dealt = gpus.of_ranks(environ, 3)
    assert dealt == ("2,3", "", "GPU-a")
    assert gpus.variables(dealt[1]) == {"CUDA_VISIBLE_DEVICES": "", "RINGAR_GPU": ""}
    described = gpus.describe(dict(enumerate(dealt)))
    assert described == "rank 0 has GPUs 2,3, rank 2 GPU GPU-a"
    assert gpus.of_ranks({**environ, "RINGAR_GPUS": "all"}, 3) == (None, None, None)


def test_describe() -> None:
    assert gpus.describe({0: None, 1: None}) == ""
    assert gpus.describe({0: "2", 1: "3"}) == "rank 0 has GPU 2, rank 1 GPU 3"
    assert gpus.describe({7: "GPU-a"}, "local rank") == "local rank 7 has GPU GPU-a"
    shared = gpus.describe({0: "0", 1: "1", 2: "0", 3: "1", 4: "0"})
    assert shared.startswith(f"ranks 0, 2 and 4 have GPU 0, ranks 1 and 3 GPU 1{NCCL}")
    parts = gpus.describe({0: "MIG-1a", 1: "MIG-2b"})
    assert "; between ranks on parts of one GPU (MIG), NCCL needs to be 2.30 or later" in parts
    shared = gpus.describe({0: "0", 1: "1", 2: "0"})
    assert shared.startswith(f"ranks 0 and 2 have GPU 0, rank 1 GPU 1{NCCL}")


def make(environ: dict[str, str], **options: object) -> JobPlan:
    request = Request(2, (sys.executable,), **options)  # type: ignore[arg-type]
    return job_plan.make(request, 2, environ, [Cpu(0, 0, number, number) for number in range(4)])


def test_each_rank_of_a_plan_has_one() -> None:
    job = make(TWO)
    environments = [job.rank_environment(rank, TWO) for rank in job.ranks]
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in environments] == ["2", "3"]
    assert [environment["RINGAR_GPU"] for environment in environments] == ["2", "3"]
    assert job.notice == "rank 0 has GPU 2, rank 1 GPU 3"


def test_what_is_exported_to_the_ranks_is_dealt_out() -> None:
    job = make(TWO, exports=("CUDA_VISIBLE_DEVICES=7,5",))
    assert [rank.gpu for rank in job.ranks] == ["7", "5"]


@pytest.mark.parametrize(
    ("environ", "options", "is_dealt"),
    [
        ({}, {"gpus": "all"}, False),
        ({"RINGAR_GPUS": "all"}, {}, False),
        ({}, {"exports": ("RINGAR_GPUS=all",)}, False),
        ({"RINGAR_GPUS": "all"}, {"gpus": "each"}, True),
    ],
)
def test_the_option_comes_before_the_variable(
    environ: dict[str, str], options: dict[str, object], is_dealt: bool
) -> None:
    job = make({**TWO, **environ}, **options)
    assert [rank.gpu for rank in job.ranks] == (["2", "3"] if is_dealt else [None, None])
    # So that ringar.init() does the same.
    choice = {**environ, **job.environment}["RINGAR_GPUS"]
    assert choice == ("each" if is_dealt else "all")
    if not is_dealt:
        assert job.notice == ""
        assert job.rank_environment(job.ranks[1], {**TWO, "RINGAR_GPU": "9"}).items() >= TWO.items()
        assert "RINGAR_GPU" not in job.rank_environment(job.ranks[1], {"RINGAR_GPU": "9"})


def test_refusals() -> None:
    with pytest.raises(UsageError, match="RINGAR_GPUS must be one of each, all. Received: 'one'"):
        make({"RINGAR_GPUS": "one"})
    with pytest.raises(UsageError, match="RINGAR_GPU is set by ringarrun itself"):
        make(TWO, exports=("RINGAR_GPU=1",))
    assert "--gpus" in launch("-np", "2", "--gpus", "one", *SHOW).stderr


@pytest.mark.job
def test_ranks_see_one_gpu_each() -> None:
    result = launch("-np", "2", *SHOW, env=TWO)
    assert sorted(result.stdout.splitlines()) == ["[0] 2 2", "[1] 3 3"]
    assert result.stderr == "ringarrun: rank 0 has GPU 2, rank 1 GPU 3\n"


@pytest.mark.job
def test_ranks_that_share_a_gpu_are_told_what_nccl_needs() -> None:
    result = launch("-np", "3", *SHOW, env=TWO)
    assert sorted(result.stdout.splitlines()) == ["[0] 2 2", "[1] 3 3", "[2] 2 2"]
    assert result.stderr.startswith(f"ringarrun: ranks 0 and 2 have GPU 2, rank 1 GPU 3{NCCL}")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.job
@pytest.mark.parametrize(
    ("option", "env", "shown"),
    [
        (["--gpus", "all"], TWO, "2,3 None"),
        ([], {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "NoDevFiles None"),
    ],
)
def test_nothing_is_changed_or_said(option: list[str], env: dict[str, str], shown: str) -> None:
    result = launch("-np", "2", *option, *SHOW, env=env)
    assert sorted(result.stdout.splitlines()) == [f"[0] {shown}", f"[1] {shown}"]
    assert result.stderr == ""


@pytest.mark.job
def test_a_job_inside_a_job_has_the_gpu_of_its_rank() -> None:
    inner = (sys.executable, "-m", "ringar.launchers", "-np", "2", "--no-prefix", *SHOW)
    result = launch("-np", "2", *inner, env=TWO)
    assert sorted(result.stdout.splitlines()) == ["[0] 2 2"] * 2 + ["[1] 3 3"] * 2


@pytest.mark.job
@pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "-")
def test_ranks_of_mpirun() -> None:
    result = launch("-np", "3", *MPIRUN, "--gpus", "each", *SHOW, env=TWO)
    assert result.returncode == 0, result.stderr
    shown = ["2 2", "3 3", "2 2"]
    assert sorted(result.stdout.splitlines()) == [f"[{r}] {text}" for r, text in enumerate(shown)]
    lines = [line for line in result.stderr.splitlines() if "GPU" in line]
    assert len(lines) == 1
    assert lines[0].startswith("ringarrun: on ")
    assert f", local ranks 0 and 2 have GPU 2, local rank 1 GPU 3{NCCL}" in lines[0]


@pytest.mark.job
def test_the_first_rank_of_a_host_speaks_for_all() -> None:
    result = guard("--", *SHOW, env={**SECOND_OF_THREE, **TWO})
    assert result.stdout == "3 3\n"
    assert "GPU" not in result.stderr
    result = guard("--", *SHOW, env={**SECOND_OF_THREE, **TWO, "RINGAR_GPUS": "all"})
    assert result.stdout == "2,3 None\n"


@pytest.mark.job
@pytest.mark.parametrize(("visible", "gpu"), [("0,1", "1"), ("5", "5")])
def test_ranks_of_srun_speak_for_themselves(visible: str, gpu: str) -> None:
    """For srun may bind GPUs, and then each rank sees another one."""
    slurm = {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }
    result = guard("--", *SHOW, env={**slurm, "CUDA_VISIBLE_DEVICES": visible})
    assert result.stdout == f"{gpu} {gpu}\n"
    assert f", rank 3 has GPU {gpu}\n" in result.stderr
