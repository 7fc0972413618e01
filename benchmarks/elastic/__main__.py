"""How long does training stand still when a rank dies, and when another one joins?

    python -m benchmarks.elastic --output build/bench-elastic
    python -m benchmarks.elastic --kills 3 --rounds 1
    python -m benchmarks.elastic --hosts 2

Rank 1 of a job of four ranks kills itself again and again (SIGKILL), and the launcher starts
another process in its place. *Recovery* is the time from the kill until all others have ended their
first step without it, *joining* the time between two steps of a rank while another one joins.
Then two ranks train with and without the callback of elastic jobs, in turn, to see what a step
costs more. In the end of each job all ranks must have the same weights. With `--hosts` the
ranks with faults are on several hosts, which are namespaces of this machine (tests/hosts).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import command, machine, processes, report, results
from benchmarks.harness.targets import Target, table
from tests.hosts import Hosts
from tests.hosts.mpi import by_tcp

Steps = list[tuple[float, int]]
"""When each step of a process has ended, in seconds, and among how many ranks."""

NEVER = 1 << 30

#: Slots whose processes die again and again cool down for longer and longer; here less so.
SCALE = {"RINGAR_GRACE_SCALE": "0.05"}


def run(
    ranks: int, elastic: bool, hosts: Hosts | None = None, **options: Any
) -> tuple[list[Steps], list[float]]:
    """Runs a job; returns the steps of each process, and when ranks were killed.

    Raises:
        JobFailedError: the job failed, or its ranks have different weights in the end.
    """
    with tempfile.TemporaryDirectory() as name:
        program = ["-m", "benchmarks.elastic.worker", json.dumps({**options, "folder": name})]
        least = ["--min-np", str(ranks - 1)] if elastic else []
        if hosts is None:
            words = [sys.executable, "-m", "ringar.launchers", "-np", str(ranks), *least, *program]
        else:
            ranks_per_host = ranks // len(hosts)
            words = hosts[0].command(*by_tcp(hosts, ranks_per_host, program, {}, least))
        processes.run_command(words, deadline=90.0 + 15.0 * options["kills"], env=SCALE)
        folder = Path(name)
        ends = {path.read_text() for path in folder.glob("*.json")}
        if len(ends) != 1:
            raise processes.JobFailedError(f"expected equal weights on all ranks, received {ends}")
        steps = [read_steps(path.read_text()) for path in folder.glob("*.steps")]
        kills = (folder / "kills").read_text().split() if options["kills"] else []
    return steps, [float(kill) for kill in kills]


def read_steps(text: str) -> Steps:
    """Reads the notes of a process; one that was killed may not have ended its last line."""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [(float(when), int(size)) for when, size in lines]


def recoveries(steps: Sequence[Steps], kills: Sequence[float], full: int) -> list[float]:
    """Returns, for each kill, the seconds until the last survivor has ended a step without it."""
    seconds = []
    for kill, after in itertools.pairwise([*kills, float("inf")]):
        firsts = [
            next((when for when, size in history if kill < when < after and size < full), None)
            for history in steps
            if history and history[0][0] < kill < history[-1][0]
        ]
        seconds.append(max(first for first in firsts if first is not None) - kill)
    return seconds


def joinings(steps: Sequence[Steps], full: int) -> list[float]:
    """Returns the seconds between the steps before and after another rank has joined, by rank."""
    return [
        then - now
        for history in steps
        for (now, before), (then, size) in itertools.pairwise(history)
        if before < size == full
    ]


def seconds_of_step(steps: Sequence[Steps]) -> float:
    """Returns the median time of a step, of the slowest process, without the first tenth."""
    return max(
        median(
            then - now for (now, _), (then, _) in itertools.pairwise(history[len(history) // 10 :])
        )
        for history in steps
    )


def measure_faults(ranks: int, kills: int, hosts: int) -> dict[str, list[float]]:
    """Measures recoveries and joinings."""
    with Hosts(hosts) if hosts > 1 else contextlib.nullcontext() as places:
        steps, killed = run(ranks, True, places, kills=kills, steps=30, every=10)
    return {"recovery": recoveries(steps, killed, ranks), "joining": joinings(steps, ranks)}


def measure_steps(rounds: int, steps: int) -> dict[str, list[float]]:
    """Measures a step of two ranks, plain and elastic in turn."""
    outcome: dict[str, list[float]] = {"plain": [], "elastic": [], "commits": []}
    for _ in range(rounds):
        for name, period in (("plain", 0), ("elastic", NEVER), ("commits", 1)):
            done, _ = run(2, period > 0, kills=0, steps=steps, every=period)
            outcome[name].append(seconds_of_step(done))
    return outcome


def targets(
    faults: dict[str, list[float]], steps: dict[str, list[float]], hosts: int = 1
) -> list[Target]:
    """Returns the targets; all of what was measured is beside its bound."""
    nothing = [float("nan")]

    def middle(figures: Sequence[float]) -> list[float]:
        return [median(figures)] if figures else nothing

    excess = [
        100 * (elastic / plain - 1)
        for plain, elastic in zip(steps["plain"], steps["elastic"], strict=True)
    ]
    return [
        Target("from SIGKILL to the others' next step, median", 1 if hosts == 1 else 3, "s",
               middle(faults["recovery"]), at_most=True),
        Target("ranks stand still while one joins and traces, longest", 10, "s",
               [max(faults["joining"])] if faults["joining"] else nothing, at_most=True),
        Target("a step without commits and faults, more than in a plain job", 1, "%",
               middle(excess), at_most=True),
    ]  # fmt: skip


def text(faults: dict[str, list[float]], steps: dict[str, list[float]], hosts: int = 1) -> str:
    """Returns the targets, then the figures."""
    rows = [
        [name, len(figures), *map(report.time_text, (median(figures), min(figures), max(figures)))]
        for name, figures in {**faults, **steps}.items()
        if figures
    ]
    lines = report.table(["what", "number", "median", "min", "max"], rows)
    return f"{table(targets(faults, steps, hosts))}\n\n{lines}"


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.elastic", __doc__)
    parser.add_argument("--ranks", type=int, default=4, help="of the job with faults (default 4)")
    parser.add_argument("--hosts", type=int, default=1, help="of that job (default %(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="in one job (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of the comparison (default 5)")
    parser.add_argument("--steps", type=int, default=1500, help="of a round (default %(default)s)")
    options = parser.parse_args(arguments)
    host = machine.describe()
    faults = measure_faults(options.ranks, options.kills, options.hosts)
    steps = measure_steps(options.rounds, options.steps)
    print(f"# Ranks that change: {machine.headline(host)}\n{text(faults, steps, options.hosts)}")
    scope = {"hosts": [options.hosts], "kills": [options.kills], "rounds": [options.rounds]}
    results.keep(
        "elastic", host, {"tried": scope, "missing": {}, **faults, **steps}, options.output
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
