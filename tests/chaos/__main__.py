"""Jobs with faults: `python -m tests.chaos --seed 1 --count 1000`.

Each seed makes a job with one or two faults (`faults.py`), which runs checked work (`program.py`)
on this host or, for root, on two hosts behind links of their own. It must end or recover in time,
use no wrong number, name the rank that was the cause, and leave no process and no shared memory.
Prints each job that does not, with its seed, and a table by kind. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
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
from tests.hosts import Faults, Hosts, run_on_hosts, unavailable
from tests.launchers.helpers import Launcher
from tests.plugin.jobs import JobResult, left_in_shared_memory, run_job

PROGRAM = str(Path(__file__).with_name("program.py"))
GRACE = {"RINGAR_GRACE_SCALE": "0.5"}
SIGNALS = {
    "launcher killed": signal.SIGKILL,
    "launcher told to stop": signal.SIGTERM,
    "launcher interrupted": signal.SIGINT,
}
ELASTIC = "--min-np {} --elastic-timeout 15"
LIMIT = 90.0
"""Seconds for a whole job, the import of TensorFlow on all ranks included."""


DISK = "/mnt"
"""Where a job with a full disk has it, in its namespace of mounts."""


def plan(case: Case, folder: str) -> str:
    """Return what `program.py` reads."""
    fields = {"seed": case.seed, "work": case.work, "steps": faults.STEPS, "faults": case.faults}
    return json.dumps(
        {
            **fields,
            "deadline": case.deadline,
            "once": f"{folder}/happened-",
            "loud": case.kind == "output closed",
            "disk": DISK if case.kind == "full disk" else "",
            # Until its launcher gets the signal, or finds its output closed.
            "stays": LIMIT if case.kind in faults.OF_LAUNCHER else 0.0,
        }
    )


def run(case: Case) -> JobResult:
    """Run a case and return how it ended."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        program = [sys.executable, PROGRAM, plan(case, folder)]
        if case.kind in faults.OF_LAUNCHER:
            return run_and_stop(case, program)
        options = ELASTIC.format(case.min_np).split() if case.work == "elastic" else []
        if case.hosts > 1:
            return run_on_two(case, folder, program, options)
        if case.kind.startswith("full"):
            return run_on_full(case, program, options)
        return run_job(case.ranks, program, launcher_args=options, deadline=LIMIT, env=GRACE)


def run_on_two(case: Case, folder: str, program: list[str], options: list[str]) -> JobResult:
    """Run a case on two hosts, with a relay before the second if the case has one."""
    each = [case.ranks - case.ranks // 2, case.ranks // 2]
    with Hosts(case.hosts) as hosts, contextlib.ExitStack() as stack:
        if case.relay is not None:
            down_file = f"{folder}/happened-link" if "down" in case.relay else ""
            stack.enter_context(hosts[1].relayed(Faults(**case.relay, down_file=down_file)))
        return run_on_hosts(
            hosts, each, program, link="tcp", options=options, variables=GRACE, deadline=LIMIT
        )


# Arguments: the folder to cover, the size of the file system there, the command.
_FULL = """
folder="$1" size="$2"; shift 2
mount -t tmpfs -o "size=$size" full "$folder" || exit 98
[ "$folder" = /dev/shm ] || cat /dev/zero > "$folder/filler" 2> /dev/null
"$@"
code=$?
for left in "$folder"/*ringar* "$folder"/*.tmp "$folder"/*.keras; do
    [ -e "$left" ] && echo "LEFT $left"
done
exit $code
"""


def run_on_full(case: Case, program: list[str], options: list[str]) -> JobResult:
    """Run a case with a /dev/shm or a disk that is full, in a namespace of mounts."""
    folder = DISK if case.kind == "full disk" else "/dev/shm"
    if case.kind == "full disk" and case.work == "elastic":
        options = [*options, "--elastic-dir", folder]
    launcher = [sys.executable, "-m", "ringar.launchers", "-np", str(case.ranks), *options]
    shell = ["unshare", "--mount", "sh", "-c", _FULL, "full", folder, "8k"]
    return run_job(None, [*shell, *launcher, *program], deadline=LIMIT, env=GRACE)


def run_and_stop(case: Case, program: list[str]) -> JobResult:
    """Run a case and stop its launcher, or take its output away, sooner or later."""
    start = time.monotonic()
    with Launcher("-np", str(case.ranks), *program) as launcher:
        time.sleep(0.5 + case.seed % 60 / 10)
        if case.kind == "output closed":
            assert launcher.process.stdout is not None
            launcher.process.stdout.close()
            launcher.process.stdout = None  # or communicate() reads it
        else:
            launcher.signal(SIGNALS[case.kind])
        out, err = launcher.process.communicate(timeout=LIMIT)
        until = time.monotonic() + 10
        while not launcher.gone() and time.monotonic() < until:
            time.sleep(0.05)
        left = [] if launcher.gone() else ["processes of the job"]
        code = launcher.process.returncode
    return JobResult(code, out or "", err, time.monotonic() - start, left)


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
        seconds = [taken for taken, _ in ends[kind]]
        bad = sum(bool(fault) for _, fault in ends[kind])
        rows.append([kind, len(seconds), bad, f"{median(seconds):.1f}", f"{max(seconds):.1f}"])
    headers = ["kind of fault", "jobs", "bad", "seconds, median", "longest"]
    return tabulate(rows, headers, tablefmt="github")


def examine(seed: int, has_hosts: bool) -> tuple[Case, float, str]:
    """Run the job of a seed; return it, its seconds, and what is wrong with it; print that."""
    case = faults.make(seed, has_hosts)
    job = run(case)
    fault = verdict(case, job)
    if fault:
        print(f"seed {seed}: {fault}\n{case}\n{job}", flush=True)
    elif sys.stderr.isatty():
        print(f"seed {seed}: {case.kind}, {job.seconds:.1f} s", file=sys.stderr, flush=True)
    return case, job.seconds, fault


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first job (default 1)")
    parser.add_argument("--count", type=int, default=1000, help="of jobs (default 1000)")
    parser.add_argument(
        "--at-once", type=int, default=1, help="jobs that run at a time (default 1)"
    )
    parser.add_argument("--minutes", type=float, help="after which no other job begins")
    options = parser.parse_args(arguments)
    until = time.monotonic() + 60 * (options.minutes or 1e6)
    has_hosts = unavailable() is None
    ends: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)

    def in_time(seed: int) -> tuple[Case, float, str] | None:
        return examine(seed, has_hosts) if time.monotonic() < until else None

    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for done in pool.map(in_time, range(options.seed, options.seed + options.count)):
            if done is not None:
                case, seconds, fault = done
                ends[case.kind].append((seconds, fault))
    count = sum(map(len, ends.values()))
    bad = sum(bool(fault) for of_kind in ends.values() for _, fault in of_kind)
    print(table(ends))
    print(f"{count} jobs from seed {options.seed} on, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
