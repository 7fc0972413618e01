from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ringar.job import membership
from ringar.launchers.errors import UsageError
from ringar.launchers.plan import job_plan
from ringar.launchers.plan.cpus import Cpu
from ringar.launchers.plan.hosts import Host
from ringar.launchers.plan.job_plan import JobPlan
from ringar.launchers.plan.request import Request
from ringar.launchers.start import environment

FOUR_CPUS = [Cpu(0, 0, number, number) for number in range(4)]
ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/home/someone", "CUDA_VISIBLE_DEVICES": ""}


def make(**options: object) -> JobPlan:
    fields: dict[str, object] = {"num_proc": 2, "command": (sys.executable, "train.py"), **options}
    request = Request(**fields)  # type: ignore[arg-type]
    assert request.num_proc is not None
    return job_plan.make(request, request.num_proc, ENVIRON, FOUR_CPUS)


def test_each_rank_knows_its_place() -> None:
    job = make(num_proc=3)
    assert [rank.rank for rank in job.ranks] == [0, 1, 2]
    assert job.rank_environment(job.ranks[2], {}) == {
        "PYTHONUNBUFFERED": "1",
        "RINGAR_JOB": job.job,
        "RINGAR_RANK": "2",
        "RINGAR_SIZE": "3",
        "RINGAR_LOCAL_RANK": "2",
        "RINGAR_LOCAL_SIZE": "3",
        "RINGAR_CROSS_RANK": "0",
        "RINGAR_CROSS_SIZE": "1",
        "RINGAR_BOUND_CPUS": "1",
    }


def test_other_libraries_have_variables_of_their_own() -> None:
    """With the name of the host that the user has given, each rank that of its slot."""
    base = {job_plan.PREFIX_VARIABLE: "HOROVOD_", "HOROVOD_RANK": "7", "HOROVOD_HOSTNAME": "outer"}

    def places(**options: object) -> list[tuple[str, ...]]:
        job = make(num_proc=3, **options)
        names = ("RANK", "SIZE", "LOCAL_RANK", "CROSS_SIZE", "HOSTNAME")
        environments = [job.rank_environment(rank, base) for rank in job.ranks]
        return [tuple(variables[f"HOROVOD_{name}"] for name in names) for variables in environments]

    hosts = (Host("localhost", 1), Host("127.0.0.1", 1))
    assert places(hosts=hosts) == [
        (str(rank), "3", str(rank), "1", name)
        for rank, name in enumerate(("localhost", "127.0.0.1", "127.0.0.1"))
    ]
    assert {row[-1] for row in places()} == {"localhost"}
    by_mpi = job_plan.RankPlan(3, 4, 1, 2, by_mpi=True).place_for_others("HOROVOD_")
    assert by_mpi["HOROVOD_RANK"] == "3"
    assert by_mpi["HOROVOD_HOSTNAME"] == os.uname().nodename
    assert "HOROVOD_CROSS_RANK" not in by_mpi
    member = job_plan.RankPlan(0, 1, 0, 1, files={membership.VARIABLE: 5}, host="h7")
    assert member.place_for_others("HOROVOD_")["HOROVOD_ELASTIC"] == "1"
    assert member.place_for_others("HOROVOD_")["HOROVOD_HOSTNAME"] == "h7"


def test_jobs_have_different_ids() -> None:
    assert make().job != make().job


def test_a_job_inside_a_job_forgets_the_outer_one() -> None:
    job = make(bind_to="none")
    outer = {"RINGAR_RANK": "7", "RINGAR_SEGMENT_FD": "9", "RINGAR_BOUND_CPUS": "3", "A": "1"}
    outer |= {"HOROVOD_RANK": "7", "HOROVOD_HOSTNAME": "outer", "HOROVOD_ELASTIC": "1"}
    inner = job.rank_environment(job.ranks[0], outer)
    assert inner["RINGAR_RANK"] == "0"
    assert inner["A"] == "1"
    assert "RINGAR_SEGMENT_FD" not in inner
    assert not any(name.startswith("HOROVOD_") for name in inner)
    assert "RINGAR_BOUND_CPUS" not in inner


@pytest.mark.parametrize("value", ["", "0", "x"])
def test_pythonunbuffered_of_the_user_wins(value: str) -> None:
    job = make()
    environment = job.rank_environment(job.ranks[0], {"PYTHONUNBUFFERED": value})
    assert environment["PYTHONUNBUFFERED"] == value


def test_exports_are_copied_or_set() -> None:
    job = make(exports=("HOME", "A=1=2", "EMPTY=", "RINGAR_DEADLINE=5"))
    assert job.environment == {
        "HOME": "/home/someone",
        "A": "1=2",
        "EMPTY": "",
        "RINGAR_DEADLINE": "5",
    }


@pytest.mark.parametrize(
    ("export", "message"),
    [
        ("NOT_THERE", "expected a variable that is set, but NOT_THERE is not"),
        ("=1", "expected NAME or NAME=VALUE, received '=1'"),
        ("RINGAR_RANK=1", "RINGAR_RANK is set by ringarrun itself"),
    ],
)
def test_bad_exports(export: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(exports=(export,))


def test_times_reach_the_ranks() -> None:
    job = make(start_timeout=90.0, deadline=0.5, stall_warning=1e6)
    assert job.environment == {
        "RINGAR_START_TIMEOUT": "90",
        "RINGAR_DEADLINE": "0.5",
        "RINGAR_STALL_WARNING": "1000000",
    }


@pytest.mark.parametrize(
    ("num_proc", "bind_to", "cpus"),
    [
        (1, None, [(0, 1, 2, 3)]),
        (2, None, [(0, 1), (2, 3)]),
        (4, "core", [(0,), (1,), (2,), (3,)]),
        (2, "none", [None, None]),
        (5, None, [None] * 5),
        (8, None, [(0,), (1,), (2,), (3,)] * 2),
        (8, "none", [None] * 8),
        (3, "numa", [(0, 1, 2, 3)] * 3),
    ],
)
def test_binding(num_proc: int, bind_to: str | None, cpus: list[tuple[int, ...] | None]) -> None:
    """A rank knows the part of a CPU, or the CPUs, that are its share of those that it has."""
    job = make(num_proc=num_proc, bind_to=bind_to)
    assert [rank.cpus for rank in job.ranks] == cpus
    for rank in job.ranks:
        share = rank.environment().get("RINGAR_BOUND_CPUS")
        if rank.cpus is None:
            assert share is None
        else:
            assert float(share or 0) == pytest.approx(len(rank.cpus) / cpus.count(rank.cpus), 1e-5)


def test_ranks_that_may_be_left_by_others_share_no_cpu() -> None:
    assert {rank.cpus for rank in make(num_proc=8, min_np=2).ranks} == {None}
    assert {rank.cpus for rank in make(num_proc=8, max_failures=1).ranks} == {None}
    assert len({rank.cpus for rank in make(num_proc=4, min_np=2).ranks}) == 4


def test_binding_more_ranks_than_cpus_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected at most 4 ranks.*received 5.*--bind-to none"):
        make(num_proc=5, bind_to="core")


def test_one_rank_has_no_prefix_unless_asked_for() -> None:
    assert not make(num_proc=1).prefix
    assert make(num_proc=1, prefix=True).prefix
    assert make(num_proc=2).prefix
    assert not make(num_proc=2, prefix=False).prefix


def test_output_folders_are_padded_as_horovod_does(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    assert make(num_proc=2, output_folder=folder).output_path(1, "stdout") == (
        folder / "rank.1" / "stdout"
    )
    assert make(num_proc=11, output_folder=folder).output_path(3, "stderr") == (
        folder / "rank.03" / "stderr"
    )
    assert make().output_path(0, "stdout") is None


def test_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"expected a folder to write in, received .*file"):
        make(output_folder=tmp_path / "file")


@pytest.mark.parametrize("num_proc", [0, -1, 65, 10**9])
def test_number_of_ranks_out_of_range(num_proc: int) -> None:
    with pytest.raises(UsageError, match=rf"-np: expected .* 64.* received {num_proc};") as caught:
        make(num_proc=num_proc)
    assert caught.value.code == 2


def test_a_large_host_takes_a_rank_per_cpu() -> None:
    cpus = [Cpu(0, 0, number, number) for number in range(96)]
    job = job_plan.make(Request(96, (sys.executable,)), 96, ENVIRON, cpus)
    assert len(job.ranks) == 96
    with pytest.raises(UsageError, match="at most 96 ranks"):
        job_plan.make(Request(97, (sys.executable,)), 97, ENVIRON, cpus)


def test_no_program() -> None:
    with pytest.raises(UsageError, match="expected a program to run") as caught:
        make(command=())
    assert caught.value.code == 2


def test_program_is_looked_up_in_the_path_of_the_ranks(tmp_path: Path) -> None:
    program = tmp_path / "my-program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match="found nowhere in PATH") as caught:
        make(command=("my-program",))
    assert caught.value.code == 127
    assert make(command=("my-program",), exports=(f"PATH={tmp_path}",)).command == ("my-program",)


def test_scripts_and_modules_become_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert make(command=(str(script), "-x")).command == (sys.executable, str(script), "-x")
    plan = make(command=("train", "-x"), module=True, exports=(f"PYTHONPATH={tmp_path}",))
    assert plan.command == (sys.executable, "-m", "train", "-x")
    with pytest.raises(UsageError, match="there is no train") as caught:
        make(command=("train",), module=True)
    assert caught.value.code == 127


def test_what_travels_to_other_hosts() -> None:
    shell = dict.fromkeys(("HOME", "PWD", "SSH_CONNECTION", "XDG_SEAT", "SLURM_PROCID"), "x")
    program = dict.fromkeys(("AWS_REGION", "PATH", "TF_SET", "RINGAR_DEADLINE"), "x")
    ranks = {**shell, **program, "BASH_FUNC_module%%": "() { }", "RINGAR_RANK": "3", "A": "1"}
    added = {"A": "1", "HOME": "/elsewhere"}
    assert environment.exported(ranks, added) == tuple(sorted({*program, "A", "HOME"}))
    names = ("A", "HOME", "PATH", "RINGAR_DEADLINE", "TF_SET")
    assert environment.exported(ranks, added, everything=False) == names
