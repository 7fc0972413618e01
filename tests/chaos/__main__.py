"""Jobs with faults, one after the other: `python -m tests.chaos --seed 1 --count 1000`.

Each seed makes a job with one or two faults (`faults.py`), which runs checked work (`program.py`)
on this host or, for root, on two hosts behind links of their own. It must end or recover in time,
use no wrong number, name the rank that was the cause, and leave no process and no shared memory.
Prints each job that does not, with its seed, and a table by kind. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import collections
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tabulate import tabulate

from tests.chaos import faults
from tests.chaos.faults import Case
from tests.hosts import Hosts, run_on_hosts, unavailable
from tests.launchers.helpers import Launcher
from tests.plugin.jobs import JobResult, left_in_shared_memory, run_job

PROGRAM = str(Path(__file__).with_name("program.py"))
LIMIT = 60.0
"""Seconds for a whole job, the import of TensorFlow on all ranks included."""


def plan(case: Case, folder: str) -> str:
    """Return what `program.py` reads."""
    fields = {"seed": case.seed, "work": case.work, "steps": faults.STEPS, "faults": case.faults}
    return json.dumps({**fields, "deadline": faults.DEADLINE, "once": f"{folder}/happened-"})


def run(case: Case) -> JobResult:
    """Run a case and return how it ended."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        program = [sys.executable, PROGRAM, plan(case, folder)]
        if case.kind in faults.OF_LAUNCHER:
            return run_and_stop(case, program)
        options = ["--min-np", str(case.ranks - 1)] if case.work == "elastic" else []
        grace = {"RINGAR_GRACE_SCALE": "0.5"}
        if case.hosts > 1:
            with Hosts(case.hosts) as hosts:
                each = [case.ranks - case.ranks // 2, case.ranks // 2]
                return run_on_hosts(
                    hosts, each, program, link="tcp", options=options, variables=grace,
                    deadline=LIMIT,
                )  # fmt: skip
        return run_job(case.ranks, program, launcher_args=options, deadline=LIMIT, env=grace)


def run_and_stop(case: Case, program: list[str]) -> JobResult:
    """Run a case and stop its launcher, sooner or later."""
    start = time.monotonic()
    number = signal.SIGKILL if case.kind == "launcher killed" else signal.SIGTERM
    with Launcher("-np", str(case.ranks), *program) as launcher:
        time.sleep(0.5 + case.seed % 60 / 10)
        launcher.signal(number)
        out, err = launcher.process.communicate(timeout=LIMIT)
        until = time.monotonic() + 10
        while not launcher.gone() and time.monotonic() < until:
            time.sleep(0.05)
        left = [] if launcher.gone() else ["processes of the job"]
        code = launcher.process.returncode
    return JobResult(code, out, err, time.monotonic() - start, left)


def verdict(case: Case, job: JobResult) -> str:
    """Return what is wrong with the end of a case; "" if nothing is."""
    if job.leftovers:
        return f"left processes: {job.leftovers}"
    if left := left_in_shared_memory():
        return f"left in /dev/shm: {left}"
    if "WRONG" in job.stdout:
        return "used a wrong number"
    return case.fault_of(job.code, job.stderr)


def table(ends: dict[str, list[tuple[float, str]]]) -> str:
    """Return a row per kind: how many jobs, how many bad, and how long they took."""
    rows = []
    for kind in sorted(ends):
        seconds = [taken for taken, _ in ends[kind]]
        bad = sum(bool(fault) for _, fault in ends[kind])
        rows.append([kind, len(seconds), bad, f"{median(seconds):.1f}", f"{max(seconds):.1f}"])
    headers = ["kind of fault", "jobs", "bad", "seconds, median", "longest"]
    return tabulate(rows, headers, tablefmt="github")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first job (default 1)")
    parser.add_argument("--count", type=int, default=1000, help="of jobs (default 1000)")
    options = parser.parse_args(arguments)
    has_hosts = unavailable() is None
    ends: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)
    bad = 0
    for seed in range(options.seed, options.seed + options.count):
        case = faults.make(seed, has_hosts)
        job = run(case)
        fault = verdict(case, job)
        ends[case.kind].append((job.seconds, fault))
        if fault:
            bad += 1
            print(f"seed {seed}: {fault}\n{case}\n{job}", flush=True)
        elif sys.stderr.isatty():
            print(f"seed {seed}: {case.kind}, {job.seconds:.1f} s", file=sys.stderr, flush=True)
    print(table(ends))
    print(f"{options.count} jobs from seed {options.seed} on, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
