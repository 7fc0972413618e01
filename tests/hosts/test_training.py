"""Training on two hosts equals one process, and the tests of one host pass on several."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.hosts import Hosts, run_on_hosts
from tests.hosts.scenarios import SCRIPTS, run_scenarios_on

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts", "has_open_mpi"),
    pytest.mark.deadline(200),
]

#: Of tests/collectives and tests/keras: each collective in each way to call it from TensorFlow, and
#: training. Sums come in another order between hosts: bits of floating sums are others there.
SUITE = [
    "tests/collectives/test_allgather.py",
    "tests/collectives/test_alltoall.py",
    "tests/collectives/test_barrier.py",
    "tests/collectives/test_broadcast.py",
    "tests/collectives/test_objects.py",
    "tests/collectives/test_order.py",
    "tests/keras/test_step.py",
]


def run_suite(hosts: Hosts, ranks: int, folder: Path, *words: str, deadline: float = 180) -> str:
    """Run pytest with these words on `ranks` ranks of each host; return the standard output."""
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    variables = {"RINGAR_TEST_HUB": str(folder / "hub")}
    result = run_on_hosts(hosts, ranks, program, variables=variables, deadline=deadline)
    result.check()
    return result.stdout


def test_training_equals_one_process(two: Hosts, tmp_path: Path) -> None:
    outcomes = run_scenarios_on(two, 1, SCRIPTS / "fit.py", tmp_path, deadline=80)
    outcomes.expect_success("training equals one process")
    outcomes.job.check()


@pytest.mark.slow
def test_sharded_training(two: Hosts, tmp_path: Path) -> None:
    outcomes = run_scenarios_on(two, 2, SCRIPTS / "sharded.py", tmp_path, deadline=120)
    for scenario in ("slices", "bytes", "two process sets"):
        outcomes.expect_success(scenario)
    for outcome in outcomes.of("uneven hosts"):
        outcome.expect("ValueError", "expected equally many ranks on every host")
        assert "received 2 (host 0), 1 (host 1)" in outcome.message
    outcomes.job.check()


@pytest.mark.slow
def test_autotune_on_two_hosts(two: Hosts, tmp_path: Path) -> None:
    """Which searches algorithms, too: the weights are those without it up to sums' order."""
    outcomes = run_scenarios_on(two, 1, SCRIPTS / "autotune.py", tmp_path, deadline=80)
    outcomes.expect_success("tuned training")
    outcomes.job.check()


@pytest.mark.slow
def test_the_suite_of_one_host(two: Hosts, tmp_path: Path) -> None:
    assert " passed" in run_suite(two, 2, tmp_path, *SUITE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests",
    [
        ["test_delayed.py::test_is_the_papers_rule"],
        ["test_synthetic.py::test_is_the_papers_rule", "test_synthetic.py::test_sparse_updates"],
    ],
    ids=["delayed", "synthetic"],
)
def test_modules_on_two_hosts(two: Hosts, tmp_path: Path, tests: list[str]) -> None:
    suite = [f"tests/parallel/pipeline/{test}" for test in tests]
    assert "2 passed" in run_suite(two, 1, tmp_path, *suite, deadline=120)


def test_a_parameter_server_on_two_hosts(two: Hosts, tmp_path: Path) -> None:
    """Pulls and pushes between hosts, and in a host: replays have the same bits."""
    suite = "tests/asynchronous/test_parameter_server.py"
    names = [f"{suite}::test_replays_have_the_same_bits", f"{suite}::test_ranks_that_serve_only"]
    assert " passed" in run_suite(two, 2, tmp_path, *names)


@pytest.mark.slow
def test_groups_on_two_hosts(two: Hosts, tmp_path: Path) -> None:
    suite = ["tests/research/codistillation", "-k", "formula or batches or stop"]
    assert "13 passed" in run_suite(two, 2, tmp_path, "--slow", *suite)
