"""Every collective on 2 and 4 hosts with 1 and 2 ranks each, and some odd ways to place ranks."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest

from tests.faults.outcomes import Outcomes
from tests.hosts import Hosts
from tests.hosts.scenarios import SCRIPTS, run_scenarios_on
from tests.plugin import fast_if

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts", "has_open_mpi"),
    pytest.mark.deadline(180),
]

ALGORITHMS = ("auto", "ring", "recursive_doubling", "halving_doubling", "hierarchical")
SCENARIOS = [
    *[f"{collective}, {how}" for collective in ("allreduce", "large allreduce", "narrow allreduce")
      for how in ALGORITHMS],
    "reducescatter", "allgather", "broadcast", "alltoall", "grouped", "barrier", "objects",
    "process_sets", "sets_in_turn", "messages", "messages_in_a_function", "refused_messages",
    "windows", "windows_refuse", "beside_mpi", "in_a_function", "works at the end",
]  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How many ranks each host has, whether they are numbered host by host or in turn, the link."""

    ranks: tuple[int, ...]
    in_turn: bool = False
    link: str = "mpi"

    def __str__(self) -> str:
        how = " in turn" if self.in_turn else " by TCP" if self.link == "tcp" else ""
        return "+".join(map(str, self.ranks)) + how

    @property
    def hosts_of_ranks(self) -> list[int]:
        """The host of each rank."""
        places = [(i, host) for host, count in enumerate(self.ranks) for i in range(count)]
        return [host for _, host in (sorted(places) if self.in_turn else places)]


LAYOUTS = [
    *(fast_if(False, Layout(ranks)) for ranks in ((1, 1, 1, 1), (2, 2), (2, 2, 2, 2), (3, 1))),
    *(fast_if(False, Layout(ranks, link="tcp")) for ranks in ((1, 1, 1, 1), (2, 2, 2, 2), (3, 1))),
    fast_if(False, Layout((1, 1))),
    Layout((2, 2), in_turn=True),
    fast_if(False, Layout((2, 2), link="tcp")),
]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A layout, and what came of it."""

    layout: Layout
    outcomes: Outcomes
    left: list[str]
    """Names of ringar in the shared memory of the hosts, after its end."""

    def values(self, scenario: str) -> list[object]:
        """What each rank wrote down as a value."""
        return [ast.literal_eval(outcome.message) for outcome in self.outcomes.of(scenario)]


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def run(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    can_make_hosts: None,
    has_open_mpi: None,
) -> Run:
    layout: Layout = request.param
    folder = tmp_path_factory.mktemp("collectives")
    options = ["--map-by", "node"] if layout.in_turn else []
    with Hosts(len(layout.ranks)) as hosts:
        outcomes = run_scenarios_on(
            hosts, layout.ranks, SCRIPTS / "collectives.py", folder, options=options,
            link=layout.link, deadline=150,
        )  # fmt: skip
        left = [name for host in hosts for name in host.shared_memory() if "ringar" in name]
    return Run(layout, outcomes, left)


def test_the_job_ends_well(run: Run) -> None:
    run.outcomes.job.check()
    assert run.left == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_results(run: Run, scenario: str) -> None:
    if scenario == "beside_mpi" and run.layout.link == "tcp":
        pytest.skip("there is no MPI beside it")
    run.outcomes.expect_success(scenario)


def test_ranks_know_where_they_are(run: Run) -> None:
    hosts = run.layout.hosts_of_ranks
    expected = []
    for rank, host in enumerate(hosts):
        local_rank = hosts[:rank].count(host)
        peers = [h for h in range(len(run.layout.ranks)) if run.layout.ranks[h] > local_rank]
        place = (local_rank, run.layout.ranks[host], peers.index(host), len(peers))
        expected.append((f"host{host}", rank, len(hosts), *place))
    assert run.values("where") == expected


def test_bytes_between_hosts(run: Run) -> None:
    """A hierarchy sends as much as if each host were one rank, a flat ring as one of all ranks.

    Headers and acknowledgements are among what is counted: 1% of segments of 64 KiB.
    """
    n = len(run.layout.ranks)
    firsts = [run.layout.hosts_of_ranks.index(host) for host in range(n)]

    def ratios(name: str) -> list[object]:
        values = run.values(f"sent, {name}")
        return [values[first] for first in firsts]

    assert ratios("hierarchical") == pytest.approx([2 * (n - 1) / n] * n, rel=0.02)
    assert ratios("hierarchical, narrow") == pytest.approx([(n - 1) / n] * n, rel=0.02)
    if not run.layout.in_turn:
        ranks = sum(run.layout.ranks)
        assert ratios("ring") == pytest.approx([2 * (ranks - 1) / ranks] * n, rel=0.02)
