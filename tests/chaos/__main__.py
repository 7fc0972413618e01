"""Jobs with faults: `python -m tests.chaos --seed 1 --count 1000`.

Each seed makes a job with one or two faults (`faults.py`, of the table in `kinds.py`), which runs
checked work (`program.py`, `work.py`) on this host or, for root, on hosts behind links of their own
(`jobs.py`). It must end or recover in time, use no wrong number, name the rank that was the cause,
and leave no process and no shared memory (`case.py`).
Prints each job that does not, with its seed, and a table by kind. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import sys
import tempfile
import time
from dataclasses import replace
from statistics import median

from tabulate import tabulate

from tests.chaos import faults, jobs
from tests.chaos.case import Case
from tests.chaos.kinds import KINDS
from tests.hosts import unavailable
from tests.plugin.jobs import JobResult, left_in_shared_memory


def verdict(case: Case, job: JobResult) -> str:
    """Return what is wrong with the end of a case; "" if nothing is."""
    if job.leftovers:
        return f"left processes: {job.leftovers}"
    if left := left_in_shared_memory():
        return f"left in /dev/shm: {left}"
    if "LEFT" in job.stdout:
        return "left files on a full file system"
    if "WRONG" in job.stdout:
        return "used a wrong number"
    return case.fault_of(job.code, job.stderr)


def table(ends: dict[str, list[tuple[float, str]]]) -> str:
    """Return a row per kind: how many jobs, how many bad, and how long they took."""
    rows = []
    for kind in sorted(ends):
        seconds = [duration for duration, _ in ends[kind]]
        failures = sum(bool(fault) for _, fault in ends[kind])
        rows.append([kind, len(seconds), failures, f"{median(seconds):.1f}", f"{max(seconds):.1f}"])
    headers = ["kind of fault", "jobs", "bad", "seconds, median", "longest"]
    return tabulate(rows, headers, tablefmt="github")


def examine(case: Case, shows: bool) -> tuple[Case, float, str]:
    """Run the job of a case; return it, its seconds, and what is wrong with it; print that.

    Args:
        case: the case.
        shows: whether to print the output of the job in any case.
    """
    seconds, fault = 0.0, ""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        for number, life in enumerate(case.each_life()):
            job = jobs.run(life, folder, number)
            seconds += job.seconds
            fault = verdict(life, job)
            if fault or shows:
                print(f"seed {case.seed}: {fault or 'good'}\n{life}\n{job}", flush=True)
            if fault:
                break
    if not fault and sys.stderr.isatty():
        print(f"seed {case.seed}: {case.kind}, {seconds:.1f} s", file=sys.stderr, flush=True)
    return case, seconds, fault


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first job (default 1)")
    parser.add_argument("--count", type=int, default=1000, help="of jobs (default 1000)")
    parser.add_argument(
        "--at-once", type=int, default=1, help="jobs that run at a time (default 1)"
    )
    parser.add_argument(
        "--kind", action="append", choices=KINDS, metavar="KIND", help="of faults (default: all)"
    )
    parser.add_argument(
        "--patience", type=float, default=1.0, help="on a busy machine: a factor of all time limits"
    )
    parser.add_argument("--show", action="store_true", help="print the output of good jobs, too")
    parser.add_argument("--minutes", type=float, help="after which no other job begins")
    options = parser.parse_args(arguments)
    until = time.monotonic() + 60 * (options.minutes or 1e6)
    has_hosts = unavailable() is None
    ends: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)

    def in_time(seed: int) -> tuple[Case, float, str] | None:
        if time.monotonic() >= until:
            return None
        case = faults.make(seed, has_hosts, options.kind)
        return examine(replace(case, patience=options.patience), options.show)

    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for done in pool.map(in_time, range(options.seed, options.seed + options.count)):
            if done is not None:
                case, seconds, fault = done
                ends[case.kind].append((seconds, fault))
    count = sum(map(len, ends.values()))
    failures = sum(bool(fault) for of_kind in ends.values() for _, fault in of_kind)
    print(table(ends))
    print(f"{count} jobs from seed {options.seed} on, {failures} bad")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
