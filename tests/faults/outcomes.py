"""Runs a job of scenarios and reads what its ranks wrote down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.plugin import JobResult, run_job

#: The class of a MismatchError in each mode. XLA has one class for all errors of custom calls.
KINDS = {
    "numpy": "MismatchError",
    "eager": "InvalidArgumentError",
    "function": "InvalidArgumentError",
    "compiled": "InternalError",
}


@dataclass(frozen=True)
class Outcome:
    """What one rank saw in one scenario.

    Attributes:
        rank: who.
        kinds: the names of the exception's classes, its own first; empty: nothing was raised.
        message: the exception's.
        seconds: how long it took.
    """

    rank: int
    kinds: list[str]
    message: str
    seconds: float

    def expect(self, kind: str, *texts: str, within: float = 15.0) -> None:
        """Fails the test unless the rank got such an exception, whose message has all ``texts``."""
        assert kind in self.kinds, f"rank {self.rank}: expected {kind}, got {self}"
        for text in texts:
            assert text in self.message, f"rank {self.rank}: no {text!r} in\n{self.message}"
        assert self.seconds < within, f"rank {self.rank} knew only after {self.seconds:.1f} s"


@dataclass(frozen=True)
class Outcomes:
    """How a job ended, and what its ranks saw.

    Attributes:
        job: exit code and output.
        records: what each rank recorded, per scenario.
    """

    job: JobResult
    records: list[dict[str, Outcome]] = field(default_factory=list)

    def of(self, scenario: str, ranks: Sequence[int] | None = None) -> list[Outcome]:
        """What ``ranks`` (default: all) saw in a scenario; each of them must have come so far."""
        chosen = range(len(self.records)) if ranks is None else ranks
        laggards = [r for r in chosen if scenario not in self.records[r]]
        assert not laggards, f"ranks {laggards} never ended {scenario!r}\n{self.job}"
        return [self.records[r][scenario] for r in chosen]

    def expect_success(self, scenario: str, ranks: Sequence[int] | None = None) -> None:
        """Fails the test unless nothing was raised in a scenario."""
        for outcome in self.of(scenario, ranks):
            assert not outcome.kinds, f"rank {outcome.rank}: {outcome}"


def run_scenarios(
    np: int | None,
    script: Path,
    folder: Path,
    *,
    args: Sequence[str] = (),
    launcher_args: Sequence[str] = (),
    deadline: float = 90.0,
) -> Outcomes:
    """Runs a script of scenarios (see job.py) on ``np`` ranks, None: without the launcher."""
    folder.mkdir(parents=True, exist_ok=True)
    job = run_job(
        np, script, args=[str(folder), *args], launcher_args=launcher_args, deadline=deadline
    )
    return read_outcomes(job, folder, np or 1)


def read_outcomes(job: JobResult, folder: Path, ranks: int) -> Outcomes:
    """What the ranks of a job that has ended wrote down in ``folder``."""
    return Outcomes(job, [_read(folder / f"{r}.jsonl", r) for r in range(ranks)])


def _read(path: Path, rank: int) -> dict[str, Outcome]:
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {entry.pop("scenario"): Outcome(rank=rank, **entry) for entry in entries}
