"""The guard of all ranks of one host, in a job over several hosts without MPI.

    ringarrun -> spread.py -> ssh (or srun) -> on each host: host_guard.py -> its ranks

It is to `spread.py` what a daemon of mpirun is to mpirun, and both talk through ssh, which is
encrypted and needs no further port: lines of JSON come on the standard input, one answer goes to
the standard output.

    spread.py                                              host_guard.py
    the job: hosts, environment, folder              ->
                                                     <-    where each rank of this host listens
    all of these addresses, the secret of the job    ->    starts the ranks
    signals                                          ->    passes them on

The sockets listen before any rank runs, and ranks inherit them. So no two programs compete for a
port, and a rank that is early waits in its peer's queue. When the input ends, `spread.py` or the
connection is gone, and the ranks are ended.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringar.job.tcp import LISTENER_VARIABLE, WORLD_VARIABLE
from ringar.launchers.errors import UsageError
from ringar.launchers.installation import ringar_version
from ringar.launchers.plan import addresses, cpus, gpus
from ringar.launchers.plan.hosts import Host
from ringar.launchers.plan.job_plan import JobPlan, RankPlan, cpu_sets
from ringar.launchers.plan.program import check_executable
from ringar.launchers.start import guard, member_path
from ringar.launchers.start.fork import Fork
from ringar.launchers.supervise import signals
from ringar.launchers.supervise.guard_failure_policy import GuardFailurePolicy
from ringar.launchers.supervise.runner import Runner

VARIABLE = "RINGAR_SPREAD"
"""Tells the guard which host of the job it is on, by number."""

BY_SLURM = "slurm"
"""In place of the number: SLURM tells it."""

ANSWER = b"RINGAR-HOST "
"""The beginning of the line with the addresses of a host."""

_BACKLOG = 4096


class Control:
    """The lines that `spread.py` writes to the standard input of a guard."""

    fd = 0

    def __init__(self) -> None:
        self._unread = b""

    def next(self) -> dict[str, Any] | None:
        """Wait for the next line and return its message; None at the end."""
        while b"\n" not in self._unread:
            data = os.read(self.fd, 1 << 16)
            if not data:
                return None
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def has_line(self) -> bool:
        """Return whether `next` would not wait, after it has returned."""
        return b"\n" in self._unread

    def follow(self, runner: Runner, take: Callable[[Mapping[str, Any]], None]) -> None:
        """Let the loop of `runner` take all further lines, the end of which stops the job."""
        runner.watch(self.fd, selectors.EVENT_READ, lambda: self.take_lines(runner, take))

    def take_lines(self, runner: Runner, take: Callable[[Mapping[str, Any]], None]) -> None:
        """Take the lines that have come, at least one."""
        while True:
            message = self.next()
            if message is None:
                runner.watch(self.fd, 0)
                runner.on_signal(signal.SIGTERM)
                return
            take(message)
            if not self.has_line():
                return


@dataclass(frozen=True)
class JobHost:
    """This host in the job.

    Attributes:
        hosts: all hosts, with their slots.
        number: that of this host.
        listen: makes a socket at which the other hosts reach this one.
        stdin: the standard input of rank 0, if that is on this host and not reached by ssh.
    """

    hosts: Sequence[Host]
    number: int
    listen: Callable[[], socket.socket]
    stdin: int | None

    @property
    def slots(self) -> int:
        """The number of ranks on this host."""
        return self.hosts[self.number].slots


def take(control: Control, options: argparse.Namespace, *, grows: bool = False) -> JobHost | None:
    """Take the line with the job, and enter its folder and environment; None if there is none.

    Args:
        control: where the line comes from.
        options: those of the guard.
        grows: whether other hosts may join the job later.

    Raises:
        UsageError: this host cannot run the program, or has no address.
    """
    job = control.next()
    if job is None:
        return None
    if job["ringar"] != ringar_version():  # a host that joins has not been asked before
        raise UsageError(
            f"expected ringar {job['ringar']}, as on the launcher's host, received "
            f"{ringar_version()}; install the same there",
            1,
        )
    folder = member_path.folder_for(job["folder"])
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"expected the folder {folder}, which ranks start in: {error.strerror}; start from a "
            "folder that all hosts share",
            1,
        ) from error
    os.environ.update(job["environment"])
    check_executable(options.command[0], os.environ.get("PATH"))
    hosts = [Host(name, slots) for name, slots in job["hosts"]]
    text = os.environ[VARIABLE]
    number = int(os.environ["SLURM_NODEID"] if text == BY_SLURM else text)
    peers = [host.name for i, host in enumerate(hosts) if i != number]
    address = addresses.to_listen_at(
        job["interfaces"], peers, os.environ, grows=grows, seen_at=job["seen_at"]
    )
    return JobHost(hosts, number, functools.partial(_listen, address), job.get("stdin"))


def make(options: argparse.Namespace) -> Runner | None:
    """Take the job from `spread.py` and return that of this host; None if spread has ended.

    Raises:
        UsageError: this host cannot run its ranks; the message says why.
    """
    control = Control()
    this_host = take(control, options)
    if this_host is None:
        return None
    listeners = [this_host.listen() for _ in range(this_host.slots)]
    texts = [text_of(listener) for listener in listeners]
    os.write(1, answer({"host": this_host.number, "addresses": texts}) + b"\n")
    rest = control.next()
    if rest is None:
        return None
    world = file_with({"hosts": _numbers(this_host.hosts), **rest})
    files = [
        {WORLD_VARIABLE: world, LISTENER_VARIABLE: listener.detach()} for listener in listeners
    ]
    # The listeners are closed here: otherwise peers could still connect to a dead rank's port.
    start = Fork(_stdin(this_host.stdin), closes=[LISTENER_VARIABLE])
    policy = GuardFailurePolicy(options.grace, of_host=True)
    runner = Runner(plan_of(options, this_host, files), start, policy, asked_by=signals.ASK)
    control.follow(runner, lambda message: runner.on_signal(message["signal"]))
    return runner


def _stdin(of_rank_0: int | None) -> Callable[[int], int]:
    """Return the function that returns the standard input of a rank."""
    return lambda rank: subprocess.DEVNULL if rank or of_rank_0 is None else of_rank_0


def _listen(address: str) -> socket.socket:
    family, *_, resolved = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(resolved)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def answer(message: Mapping[str, object]) -> bytes:
    """Return the line that takes a message to the launcher, without its end."""
    return ANSWER + json.dumps(message).encode()


def text_of(listener: socket.socket) -> str:
    """Return the address of a socket as the library reads it."""
    address, port = listener.getsockname()[:2]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _numbers(hosts: Sequence[Host]) -> list[int]:
    """Return the number of the host of each rank."""
    return [number for number, host in enumerate(hosts) for _ in range(host.slots)]


def file_with(world: Mapping[str, object]) -> int:
    """Return a file that describes the job, for its ranks alone."""
    fd = os.memfd_create("ringar-world")
    text = json.dumps(world).encode()
    while text:
        text = text[os.write(fd, text) :]
    return fd


def plan_of(
    options: argparse.Namespace,
    this_host: JobHost,
    files: Sequence[Mapping[str, int]],
    is_elastic: bool = False,
) -> JobPlan:
    """Plan the ranks of this host.

    Args:
        options: those of the guard.
        this_host: this host in the job.
        files: the open files that each rank inherits, by the variable that names them.
        is_elastic: whether ranks come and go.
    """
    hosts, number, slots = this_host.hosts, this_host.number, this_host.slots
    first = sum(host.slots for host in hosts[:number])
    size = sum(host.slots for host in hosts)
    sets = cpu_sets(
        options.bind_to, slots, cpus.available(), is_elastic or options.max_failures > 0
    )
    gpu = gpus.of_ranks(os.environ, slots)
    notice = gpus.describe(dict(enumerate(gpu, first)))
    return JobPlan(
        job=f"{options.job}.{number}",
        command=tuple(options.command),
        ranks=tuple(
            RankPlan(
                rank=first + local,
                size=size,
                local_rank=local,
                local_size=slots,
                cross_rank=sum(host.slots > local for host in hosts[:number]),
                cross_size=sum(host.slots > local for host in hosts),
                cpus=sets[local],
                sharing=sets.count(sets[local]),
                gpu=gpu[local],
                files=files[local],
                host=hosts[number].name,
            )
            for local in range(slots)
        ),
        prefix=options.prefix,
        output_folder=options.output_filename,
        notice=f"on {socket.gethostname()}, {notice}" if notice else "",
        kill_grace=options.kill_grace,
        max_failures=options.max_failures,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks of this host to their end and return the exit code."""
    options = guard.parser(__doc__).parse_args(arguments)
    return guard.run(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
