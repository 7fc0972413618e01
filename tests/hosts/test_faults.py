"""A host that disappears, and ranks on several hosts that disagree.

What mpirun does when it loses a host is its own: it ends the job at once, or not at all. Here it is
told to let the ranks be, where it can be told, so that they come to say what they saw.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import test_disagreement as disagreement
from tests.faults.outcomes import KINDS, Outcomes
from tests.hosts import Host, Hosts
from tests.hosts.scenarios import SCRIPTS, run_scenarios_on

pytestmark = [
    pytest.mark.job,
    pytest.mark.usefixtures("can_make_hosts", "has_open_mpi"),
    pytest.mark.deadline(150),
]

DEADLINE = 4.0
RANKS = (1, 1, 2)
VICTIM = 1  # the host, and its only rank
SURVIVORS = (0, 2, 3)
FAULT_TOLERANT = ("--with-ft", "ulfm")


class Disappearance(threading.Thread):
    """Waits until all ranks are in their loop, does it, and ends the job some time after that."""

    def __init__(self, folder: Path, hosts: Hosts, how: Callable[[Host], object]) -> None:
        super().__init__()
        self._folder, self._hosts, self._how = folder, hosts, how
        self.seconds = float("inf")
        """From the disappearance until all others had written down their error."""
        self.end = threading.Event()
        """The job's end, which leaves nothing to wait for."""

    def run(self) -> None:
        if not self._wait(lambda: len(list(self._folder.glob("*is in its loop"))) == sum(RANKS)):
            return
        start = time.monotonic()
        self._how(self._hosts[VICTIM])
        if self._wait(lambda: all((self._folder / f"{r}.jsonl").exists() for r in SURVIVORS), 20):
            self.seconds = time.monotonic() - start
        self.end.wait(2)
        # mpirun waits for the daemon of a host that it cannot reach any more.
        for host in self._hosts:
            host.kill()

    def _wait(self, condition: Callable[[], bool], seconds: float = 50) -> bool:
        give_up = time.monotonic() + seconds
        while not condition() and not self.end.wait(0.02) and time.monotonic() < give_up:
            pass
        return condition()


def lose_a_host(
    folder: Path,
    how: Callable[[Host], object],
    deadline: float = DEADLINE,
    options: Sequence[str] = FAULT_TOLERANT,
) -> tuple[Outcomes, float]:
    """Runs a job of which a host disappears; returns what its ranks saw, and after how long."""
    with Hosts(len(RANKS)) as hosts:
        disappearance = Disappearance(folder, hosts, how)
        disappearance.start()
        try:
            outcomes = run_scenarios_on(
                hosts, RANKS, SCRIPTS / "disappear.py", folder, args=[str(deadline)],
                options=options, deadline=90,
            )  # fmt: skip
        finally:
            disappearance.end.set()
            disappearance.join()
    return outcomes, disappearance.seconds


@pytest.mark.alone
def test_a_link_goes_down(tmp_path: Path) -> None:
    """No news for TCP: the deadline ends it, and names a rank that nothing came from."""
    outcomes, seconds = lose_a_host(tmp_path, Host.cut)
    for outcome in outcomes.of("loop", SURVIVORS):
        kinds = {"DeadlineError", "PeerLostError"} & set(outcome.kinds)
        assert kinds, outcome
        assert outcome.message.startswith(f'rank {outcome.rank} | allreduce "loop"'), outcome
        assert "rank" in outcome.message.partition("|")[2]
        assert outcome.seconds < DEADLINE + 12
    assert seconds < DEADLINE + 13


def kill_ranks(host: Host) -> None:
    """Kills the ranks of a host, whose daemon of mpirun stays to tell of it."""
    for pid in host.processes():
        if b"disappear.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            host.kill([pid])


@pytest.mark.alone
def test_ranks_of_a_host_are_killed(tmp_path: Path) -> None:
    """Known at once, by the connections that end, and long before a deadline of a minute."""
    outcomes, seconds = lose_a_host(tmp_path, kill_ranks, deadline=60)
    for outcome in outcomes.of("loop", SURVIVORS):
        outcome.expect("PeerLostError", f"rank {outcome.rank} | allreduce ")
    assert seconds < 18
    assert outcomes.job.code not in (0, None), outcomes.job


@pytest.mark.slow
def test_everything_on_a_host_is_killed(tmp_path: Path) -> None:
    """With its daemon there: mpirun ends all ranks, nobody hangs, and nothing stays."""
    outcomes, _ = lose_a_host(tmp_path, Host.kill, deadline=60, options=())
    assert outcomes.job.code is not None, outcomes.job
    assert not outcomes.job.leftovers, outcomes.job
    assert outcomes.job.seconds < 50


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, can_make_hosts: None, has_open_mpi: None
) -> Outcomes:
    """The disagreements of tests/faults: rank 1 of 3, which are on two hosts."""
    script = Path(disagreement.__file__).parent / "scripts" / "disagreement.py"
    with Hosts(2) as hosts:
        folder = tmp_path_factory.mktemp("disagreement")
        return run_scenarios_on(hosts, [1, 2], script, folder, deadline=90)


def test_a_job_of_disagreements_ends_well(outcomes: Outcomes) -> None:
    outcomes.job.check()


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("scenario", disagreement.ASKED)
def test_all_ranks_are_told_what_each_asked_for(
    outcomes: Outcomes, scenario: str, mode: str
) -> None:
    texts = disagreement.requests(scenario, mode)
    for outcome in outcomes.of(f"{scenario}, {mode}"):
        replace(outcome, message=disagreement.without_notes(outcome.message)).expect(
            KINDS[mode],
            f"rank {outcome.rank} | {texts[outcome.rank]}: expected the same collective",
            disagreement.lines(texts),
        )
    outcomes.expect_success(f"after {scenario}, {mode}")
