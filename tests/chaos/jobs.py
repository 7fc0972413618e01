"""Run the job of a case: on this host, on hosts of its own, or with a full disk."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from pathlib import Path

from tests.chaos import hosts_script, kinds
from tests.chaos.case import Case
from tests.hosts import Faults, Hosts, run_on_hosts
from tests.launchers.helpers import Launcher
from tests.plugin.jobs import PYTHONPATH, JobResult, run_job

PROGRAM = str(Path(__file__).with_name("program.py"))
GRACE = {"RINGAR_GRACE_SCALE": "0.5"}
SIGNALS = {
    "launcher killed": signal.SIGKILL,
    "launcher told to stop": signal.SIGTERM,
    "launcher interrupted": signal.SIGINT,
}
ELASTIC = "--min-np {} --elastic-timeout {}"
DISK = "/mnt"
"""Where a job with a full disk has it, in its namespace of mounts."""


def plan(case: Case, folder: str, life: int) -> str:
    """Return what `program.py` reads."""
    fields = {"seed": case.seed, "work": case.work, "steps": kinds.STEPS}
    is_stopped = case.kind in kinds.OF_LAUNCHER and not case.is_started_again
    return json.dumps(
        {
            **fields,
            "faults": [{**fault, "seconds": case.seconds_of(fault)} for fault in case.faults],
            "deadline": case.deadline,
            "start": case.deadline + 20 * case.patience,
            "once": happened(folder, life),
            "loud": case.kind == "output closed",
            "disk": DISK if case.kind == "full disk" else "",
            "backup": f"{folder}/backup",
            # With a script for the hosts, until the job has them.
            "size": case.ranks if case.answers else 0,
            # Until its launcher gets the signal, or finds its output closed.
            "stays": case.limit if is_stopped else 0.0,
        }
    )


def happened(folder: str, life: int) -> str:
    """Return how the names of files begin that tell which faults have happened."""
    return f"{folder}/{life}-happened-"


def run(case: Case, folder: str, life: int = 0) -> JobResult:
    """Run a case, or a life of it, with files in `folder`, and return how it ended."""
    program = [sys.executable, PROGRAM, plan(case, folder, life)]
    if case.kind in kinds.OF_LAUNCHER and not case.is_started_again:
        return run_and_stop(case, program)
    options = []
    if case.work in ("elastic", "elastic_backup"):
        options = ELASTIC.format(case.min_np, 15 * case.patience).split()
    if case.is_started_again and case.seed % 2:
        options += ["--kill-grace", "30"]
    if case.answers:
        return run_with_script(case, folder, program, options)
    if case.hosts > 1:
        return run_on_two(case, folder, program, options)
    if case.kind.startswith("full"):
        return run_on_full(case, program, options)
    return run_job(case.ranks, program, launcher_args=options, deadline=case.limit, env=GRACE)


def run_on_two(case: Case, folder: str, program: list[str], options: list[str]) -> JobResult:
    """Run a case on two hosts, with a relay before the second if the case has one."""
    slots = [case.ranks - case.ranks // 2, case.ranks // 2]
    with Hosts(case.hosts) as hosts, contextlib.ExitStack() as stack:
        if case.relay is not None:
            down_file = f"{happened(folder, 0)}link" if "down" in case.relay else ""
            stack.enter_context(hosts[1].relayed(Faults(**case.relay, down_file=down_file)))
        return run_on_hosts(
            hosts, slots, program, link="tcp", options=options, variables=GRACE, deadline=case.limit
        )


def run_with_script(case: Case, folder: str, program: list[str], options: list[str]) -> JobResult:
    """Run an elastic case whose hosts a script tells; on this host, if the case has one."""
    script = hosts_script.write(folder, f"{happened(folder, 0)}discovery", case.answers)
    most = str(2 * hosts_script.HOSTS)
    options = [*options, "--host-discovery-script", script, "--max-np", most]
    if case.hosts == 1:
        launcher = [sys.executable, "-m", "ringar.launchers", *options]
        return run_job(None, [*launcher, *program], deadline=case.limit, env=GRACE)
    with Hosts(case.hosts) as hosts:
        return run_on_hosts(
            hosts, [], program, link="tcp", options=options, variables=GRACE, deadline=case.limit
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
    return run_job(None, [*shell, *launcher, *program], deadline=case.limit, env=GRACE)


def run_and_stop(case: Case, program: list[str]) -> JobResult:
    """Run a case and stop its launcher, or take its output away, sooner or later."""
    start = time.monotonic()
    environment = {"PYTHONPATH": PYTHONPATH}
    with Launcher("-np", str(case.ranks), *program, env=environment) as launcher:
        time.sleep(0.5 + case.seed % 60 / 10)
        if case.kind == "output closed":
            assert launcher.process.stdout is not None
            launcher.process.stdout.close()
            launcher.process.stdout = None  # or communicate() reads it
        else:
            launcher.signal(SIGNALS[case.kind])
        out, err = launcher.process.communicate(timeout=case.limit)
        until = time.monotonic() + 10
        while not launcher.is_over() and time.monotonic() < until:
            time.sleep(0.05)
        left = [] if launcher.is_over() else ["processes of the job"]
        code = launcher.process.returncode
    return JobResult(code, out or "", err, time.monotonic() - start, left)
