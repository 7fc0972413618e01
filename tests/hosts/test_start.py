"""Starting together on several hosts: what must be equal, who is missing, what MPI must allow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ringar import cost_model
from tests.faults.outcomes import Outcomes
from tests.hosts import Hosts
from tests.hosts.scenarios import SCRIPTS, run_scenarios_on

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("has_open_mpi"), pytest.mark.deadline(180)]


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, can_make_hosts: None, has_open_mpi: None
) -> Outcomes:
    """Of rank 0 on one host, and 1 and 2 on the other."""
    with Hosts(2) as hosts:
        folder = tmp_path_factory.mktemp("start")
        return run_scenarios_on(hosts, [1, 2], SCRIPTS / "start.py", folder, deadline=90)


@pytest.mark.parametrize(
    ("scenario", "setting", "value", "last"),
    [
        ("tuning", "RINGAR_TUNING", "None", "chunk=32000"),
        ("algorithm", "RINGAR_ALGORITHM", "None", "ring"),
        ("version", "ringar", "0.0.2", "0.0.1"),
    ],
)
def test_all_ranks_hear_who_differs(
    outcomes: Outcomes, scenario: str, setting: str, value: str, last: str
) -> None:
    for outcome in outcomes.of(scenario):
        outcome.expect(
            "MismatchError",
            f"rank {outcome.rank} | expected the same {setting} on every rank",
            f"rank 0 on host0: {value}\n",
            f"rank 1 on host1: {value}\n",
            f"rank 2 on host1: {last}",
        )


def test_a_missing_cost_model_is_named_on_all_ranks(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("cost model"):
        outcome.expect("ValueError", "RINGAR_COST_MODEL=/no/such/file: expected a file")


def test_an_unknown_algorithm_is_refused_on_all_ranks(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("unknown algorithm"):
        outcome.expect("ValueError", "RINGAR_ALGORITHM", "tree", "hierarchical")


def test_a_host_without_shared_memory_is_named_on_all_ranks(outcomes: Outcomes) -> None:
    texts = ["expected the ranks of this host (host1) to share /dev/shm", "No such file"]
    first, *outcomes_of_others = outcomes.of("shared memory")
    first.expect(
        "UnsupportedError", "rank 0 | expected all ranks to start, but rank 1 could not: ", *texts
    )
    for outcome in outcomes_of_others:
        outcome.expect("UnsupportedError", f"rank {outcome.rank} | expected the ranks", *texts)


def test_a_rank_without_the_library_is_named_on_all_ranks(outcomes: Outcomes) -> None:
    *outcomes_of_others, last = outcomes.of("library")
    last.expect("ImportError", "expected the native library")
    for outcome in outcomes_of_others:
        outcome.expect(
            "RingarError",
            f"rank {outcome.rank} | expected all ranks to start, but rank 2 could not: "
            "ImportError: expected the native library",
        )


def test_a_rank_that_cannot_start_is_named_on_other_hosts(outcomes: Outcomes) -> None:
    """Not the rank of its host, which has waited for it in vain."""
    first, neighbor, last = outcomes.of("native start")
    last.expect("OutOfMemoryError")
    neighbor.expect("DeadlineError", "rank 1 | ", "waiting for rank 2")
    first.expect("OutOfMemoryError", "rank 0 | expected all ranks to start, but rank 2 could not")


def test_ranks_that_failed_to_start_can_try_again(outcomes: Outcomes) -> None:
    outcomes.expect_success("init")
    outcomes.expect_success("works")


def test_ranks_agree_on_a_new_generation(outcomes: Outcomes) -> None:
    """What is still under way of another one is told from its own by that."""
    outcomes.expect_success("generation")


def test_starting_again_and_again_takes_no_files_and_no_memory(outcomes: Outcomes) -> None:
    outcomes.expect_success("again and again")


def test_a_rank_that_never_comes_is_named(outcomes: Outcomes) -> None:
    for outcome in outcomes.of("absent", ranks=[0, 1]):
        outcome.expect("DeadlineError", f"rank {outcome.rank} | ", "waiting for rank 2.")


def test_a_rank_that_never_comes_does_not_keep_the_job(outcomes: Outcomes) -> None:
    outcomes.job.check()


def chosen_bytes(
    folder: Path, ranks: list[int], nbytes: int, other: str, variables: dict[str, str]
) -> list[float]:
    """What the first host sends for each byte: by the choice, and where an argument forces it."""
    with Hosts(len(ranks)) as hosts:
        outcomes = run_scenarios_on(
            hosts,
            ranks,
            SCRIPTS / "choice.py",
            folder,
            args=[str(nbytes), other],
            variables=variables,
            deadline=90,
        )
    outcomes.job.check()
    for scenario in ("chosen", "argument", "works at the end"):
        outcomes.expect_success(scenario)
    reports = [outcomes.of(f"sent, {name}", ranks=[0])[0] for name in ("auto", other)]
    return [ast.literal_eval(outcome.message) for outcome in reports]


@pytest.mark.slow
@pytest.mark.usefixtures("can_make_hosts")
def test_the_environment_forces_an_algorithm(tmp_path: Path) -> None:
    """A flat ring of four ranks sends 3/2 of the array over each link, a hierarchy all of it."""
    chosen, forced = chosen_bytes(
        tmp_path, [2, 2], 4 << 20, "hierarchical", {"RINGAR_ALGORITHM": "ring"}
    )
    assert chosen == pytest.approx(1.5, rel=0.03)
    assert forced == pytest.approx(1.0, rel=0.03), "the argument goes before"


@pytest.mark.slow
@pytest.mark.usefixtures("can_make_hosts")
def test_the_cost_model_is_obeyed(tmp_path: Path) -> None:
    """Where a message took a second, few long ones would win: two of all bytes, not of 3/4."""
    file = tmp_path / "parameters.json"
    slow = cost_model.Parameters(
        latency=1.0, bandwidth=1e9, reduction=1e9, local_latency=1e-6, local_bandwidth=1e10
    )
    cost_model.save(file, slow)
    chosen, forced = chosen_bytes(
        tmp_path / "job", [1] * 4, 64 << 10, "ring", {cost_model.VARIABLE: str(file)}
    )
    assert chosen == pytest.approx(2.0, rel=0.05)
    assert forced == pytest.approx(1.5, rel=0.05)


def test_mpi_of_one_thread_is_refused(tmp_path: Path) -> None:
    outcomes = run_scenarios_on(
        None, 2, SCRIPTS / "thread_level.py", tmp_path, args=["funneled"], deadline=60
    )
    outcomes.job.check()
    for outcome in outcomes.of("strict"):
        outcome.expect(
            "UnsupportedError", f"rank {outcome.rank} | ", "MPI_THREAD_MULTIPLE", "received level 1"
        )


@pytest.mark.slow
def test_mpi_of_serialized_threads_warns(tmp_path: Path) -> None:
    outcomes = run_scenarios_on(
        None, 2, SCRIPTS / "thread_level.py", tmp_path, args=["serialized"], deadline=60
    )
    outcomes.job.check()
    for outcome in outcomes.of("strict"):
        outcome.expect("UserWarning", f"rank {outcome.rank} | ", "MPI_THREAD_SERIALIZED")
    outcomes.expect_success("works")
