from __future__ import annotations

from pathlib import Path

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.plan.hosts import Host
from ringar.launchers.plan.scheduler_hosts import Allocation, counts, expand, find


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1 n2"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[08-10,12],m5", "n08 n09 n10 n12 m5"),
        ("rack[1-2]n[1-2].site", "rack1n1.site rack1n2.site rack2n1.site rack2n2.site"),
    ],
)
def test_node_lists_of_slurm(text: str, names: str) -> None:
    assert list(expand(text)) == names.split()


def test_counts_of_slurm() -> None:
    assert list(counts("4(x2),2")) == [4, 4, 2]
    with pytest.raises(UsageError, match="expected numbers as in"):
        list(counts("4(x"))


def test_slurm() -> None:
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_JOB_CPUS_PER_NODE": "8(x3)",
    }
    hosts = (Host("n1", 2), Host("n2", 2), Host("n3", 1))
    assert find(environ) == Allocation("SLURM", hosts)
    del environ["SLURM_TASKS_PER_NODE"]
    assert find(environ) == Allocation("SLURM", tuple(Host(f"n{i}", 8) for i in (1, 2, 3)))


@pytest.mark.parametrize("counts", ["", "2(x2)"])
def test_slurm_without_all_counts(counts: str) -> None:
    with pytest.raises(UsageError, match="expected as many nodes .*name the hosts with -H"):
        find(
            {
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": "n[1-3]",
                "SLURM_TASKS_PER_NODE": counts,
            }
        )


def test_slurm_with_an_odd_list() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[a-b]", "SLURM_TASKS_PER_NODE": "1"}
    with pytest.raises(UsageError, match=r"expected nodes as in n\[1-3,7\], received 'n\[a-b\]'"):
        find(environ)


@pytest.mark.parametrize(
    ("variable", "scheduler"), [("PBS_NODEFILE", "PBS"), ("LSB_DJOB_HOSTFILE", "LSF")]
)
def test_node_files(variable: str, scheduler: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("n1\nn1\nn2\nn2\n")
    assert find({variable: str(path)}) == Allocation(scheduler, (Host("n1", 2), Host("n2", 2)))
    path.write_text("")
    with pytest.raises(UsageError, match=f"{variable}: expected a file of hosts.* empty"):
        find({variable: str(path)})
    with pytest.raises(UsageError, match=f"{variable}: .*No such file.*; name the hosts with -H"):
        find({variable: str(tmp_path / "missing")})


def test_lsf_without_a_file() -> None:
    assert find({"LSB_MCPU_HOSTS": "n1 4 n2 2"}) == Allocation(
        "LSF", (Host("n1", 4), Host("n2", 2))
    )
    for text in ("", "n1", "n1 x"):
        with pytest.raises(UsageError, match="expected hosts with their slots"):
            find({"LSB_MCPU_HOSTS": text})


def test_no_allocation() -> None:
    assert find({"PATH": "/bin"}) is None
