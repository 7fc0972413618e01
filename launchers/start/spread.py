"""Start the ranks of a job on its hosts without MPI, as mpirun does with MPI.

    ringarrun (supervisor.py) -> spread.py -> ssh (or srun) -> on each host: host_guard.py

All that hosts need to know goes through the pipes of ssh, as `host_guard.py` tells: first the job,
then, when every host has answered with its addresses, all of these and the secret. After that
spread passes output on in whole lines and signals to the hosts, and ends the other hosts when one
has ended with an error; not after the loss of a host whose ranks may all fail (`--max-failures`),
which it reports in the place of that host's guard. If it is killed, its pipes end, and with them
the ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringar.launchers.errors import UsageError
from ringar.launchers.installation import ringar_version
from ringar.launchers.plan import hosts as hosts_module
from ringar.launchers.plan.hosts import Host, is_this_host
from ringar.launchers.plan.job_plan import JobPlan, RankPlan
from ringar.launchers.start import guard, srun
from ringar.launchers.start.command import Command, Start
from ringar.launchers.start.host_guard import ANSWER, BY_SLURM, VARIABLE
from ringar.launchers.start.mpi import NONE
from ringar.launchers.start.ssh import Agent
from ringar.launchers.supervise import clock, failures, graces, janitor, signals
from ringar.launchers.supervise.failure_policy import FailurePolicy
from ringar.launchers.supervise.output import Stream
from ringar.launchers.supervise.parts import Starter
from ringar.launchers.supervise.ranks import Rank, bound_to_launcher
from ringar.launchers.supervise.reports import report
from ringar.launchers.supervise.runner import Runner

#: Seconds for the answers of all hosts; the check before the start has just heard from each.
ANSWER_TIMEOUT = 60.0
_LOOK = 1.0  # seconds between two looks for hosts without an answer

CLUSTER_AGENT = "ringar.launchers.cluster.agent"
"""In the place of ssh: it reaches this host, too, where a member holds the resources."""

COST_MODEL_VARIABLE = "RINGAR_COST_MODEL"

SEEN_AT_VARIABLE = "RINGAR_SEEN_AT"
"""The addresses from which other hosts were reached by ssh, as they have seen them."""

#: The variables that the interpreter needs on another host before it can read the others.
_AT_ONCE = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")


def command(start: Start) -> Command:
    """Return the command that starts the ranks."""
    start = watching(start)
    words = [sys.executable, "-m", "ringar.launchers.start.spread"]
    words += ["--hosts", ",".join(map(str, start.hosts)), "--export", ",".join(start.exported)]
    if start.agent is not None:
        words += ["--agent", str(start.agent)]
    if start.interfaces:
        words += ["--network-interface", ",".join(start.interfaces)]
    return Command((*words, *start.program))


def watching(start: Start) -> Start:
    """Return `start` with the options by which ssh notices that a host is gone."""
    if start.agent is None or os.path.basename(start.agent.program[0]) != "ssh":
        return start
    options = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
    return replace(start, agent=replace(start.agent, options=(*start.agent.options, *options)))


class Guards(Starter):
    """The start of a job on its hosts; the processes here are the ways to guards: ssh, or srun.

    Args:
        command_of: returns the command of a way, by its number.
        first_line: the job, as guards expect it.
        kill_grace: seconds that the ranks of an elastic job have to save after a signal.

    Attributes:
        first_line: the job, as the next guard gets it.
        on_answer: takes a message of a guard.
    """

    on_answer: Callable[[Mapping[str, Any]], None]

    def __init__(
        self,
        command_of: Callable[[int], Sequence[str]],
        first_line: dict[str, object],
        kill_grace: float | None = None,
    ) -> None:
        self._command_of, self._kill_grace = command_of, kill_grace
        self.first_line = first_line

    @property
    def passes_on(self) -> tuple[int, ...]:
        """The signals for ranks, with that of a supervisor whose ranks have time to save."""
        return (signals.ASK, *signals.USER)

    def has_started(self, rank: Rank) -> None:
        """Tell a guard the job."""
        self.tell(rank, {**self.first_line, **rank.plan.files})
        for fd in rank.plan.files.values():
            os.close(fd)

    def spawn(self, plan: RankPlan, outputs: Mapping[str, int]) -> subprocess.Popen[bytes]:
        """Start the way to a host; it inherits the files of the plan."""
        return subprocess.Popen(
            self._command_of(plan.rank),
            stdin=subprocess.PIPE,
            stdout=outputs["stdout"],
            stderr=outputs["stderr"],
            pass_fds=tuple(plan.files.values()),
            start_new_session=True,
            preexec_fn=bound_to_launcher(signal.SIGTERM),
        )

    def stream(self, plan: RankPlan, name: str, fd: int) -> Stream:
        """Return the stream that shows the ranks' output, and takes the answers of the guard."""
        screen = self.runner.out if name == "stdout" else self.runner.err
        return Stream(fd, screen, live=plan.rank == 0, takes=self._take_answer, keeps=ANSWER)

    def _take_answer(self, line: bytes) -> bool:
        if not line.startswith(ANSWER):
            return False
        self.on_answer(json.loads(line[len(ANSWER) :]))
        return True

    def tell(self, way: Rank, message: object) -> None:
        """Tell a guard something."""
        pipe = way.process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # its end says more
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()

    def stop(self) -> None:
        """Tell the guards to stop their ranks."""
        has_time = self.runner.stop.signal != 0 and self._kill_grace is not None
        self._signal(signals.ASK if has_time else signal.SIGTERM)

    def kill(self) -> None:
        """End the ways, and with them the guards."""
        janitor.signal_groups([way.pid for way in self.runner.ranks], signal.SIGKILL)

    def pass_on(self, number: int) -> None:
        """Pass a signal on to the guards."""
        self.runner.stop.passed_on.add(number)
        self._signal(number)

    def pause(self, number: int) -> None:
        """Tell the guards to stop their ranks, or to let them go on."""
        self._signal(number)

    def _signal(self, number: int) -> None:
        for way in self.runner.ranks:
            self.tell(way, {"signal": number})


class WayFailurePolicy(FailurePolicy):
    """Decide on failures of a job on hosts, of which it may lose some once all have answered.

    Args:
        guards: the ways to the hosts.
        hosts: the hosts, with their ranks.
        for_ranks: further data for each rank beside the addresses.
        job: its name.
        max_failures: how many ranks may fail while the others go on.
    """

    def __init__(
        self,
        guards: Guards,
        hosts: Sequence[Host],
        for_ranks: Mapping[str, object],
        job: str,
        max_failures: int,
    ) -> None:
        super().__init__()
        self._guards, self._hosts, self._for_ranks = guards, hosts, for_ranks
        self._job, self._max_failures = job, max_failures
        self._addresses: dict[int, list[str]] = {}  # by host
        self._answers_until = clock.now() + ANSWER_TIMEOUT
        guards.on_answer = self._on_answer

    def _on_answer(self, answer: Mapping[str, Any]) -> None:
        """Take the addresses of a host; the last ones let the ranks start."""
        self._addresses[answer["host"]] = answer["addresses"]
        if len(self._addresses) == len(self._hosts):
            ordered = [text for host in sorted(self._addresses) for text in self._addresses[host]]
            world = {**self._for_ranks, "addresses": ordered, "secret": secrets.token_hex(32)}
            for way in self.runner.ranks:
                self._guards.tell(way, world)

    def step(self, now: float) -> None:
        """End the job if hosts do not answer."""
        names = [host.name for i, host in enumerate(self._hosts) if i not in self._addresses]
        if names and now > self._answers_until and self.stop.term_at is None:
            self.runner.note(
                f"expected an answer of every host in {ANSWER_TIMEOUT:.0f} s, received none of "
                f"{', '.join(names)}; nothing was started"
            )
            self.runner.on_signal(signal.SIGTERM)

    def timeout(self, timeout: float | None) -> float | None:
        """Return how long to wait for the next look for hosts that do not answer."""
        if len(self._addresses) < len(self._hosts):
            return _LOOK if timeout is None else min(_LOOK, timeout)
        return timeout

    def goes_on(self) -> bool:
        """Return whether only hosts are lost whose ranks may all fail."""
        ranks = sum(self._hosts[way.number].slots for way in self.failures if _is_lost(way))
        are_lost = all(map(_is_lost, self.failures))
        return are_lost and ranks <= self._max_failures and len(self.runner.ranks) > 1

    def on_allowed_failure(self, rank: Rank) -> None:
        """Report the ranks of a host that is lost; the supervisor may know of some."""
        self._report_way(rank)
        numbers = [number for number, host in enumerate(self._hosts) for _ in range(host.slots)]
        name = self._hosts[rank.number].name
        ending = f"failed with its host: the way to it {failures.ending(rank)}"
        for peer in (peer for peer, number in enumerate(numbers) if number == rank.number):
            text = report(f"{self._job}.{rank.number}", peer, len(numbers), name, ending)
            self.runner.err.line(text.encode())

    def kill_grace(self) -> float:
        """Return the seconds from SIGTERM to SIGKILL, of which guards take the first ones."""
        return graces.KILL + graces.SETTLE

    def report(self) -> None:
        """Name the hosts whose connection has ended; guards report all else by themselves."""
        if not self.goes_on():
            for way in filter(_is_lost, self.failures):
                self._report_way(way)

    def _report_way(self, way: Rank) -> None:
        of_each = len(self.runner.ranks) == len(self._hosts)
        name = self._hosts[way.number].name if of_each else "srun"
        self.runner.note(
            f"{name}: the way to it {failures.ending(way)}; the host or the connection "
            "to it may be gone"
        )


def _is_lost(way: Rank) -> bool:
    """Return whether the way to a host has ended, and not its guard."""
    return way.status is not None and (way.status.code == 255 or bool(way.status.signal))


def command_for(start: Start, number: int, host: Host) -> list[str]:
    """Return the command that starts the guard of one host."""
    if start.agent is None:
        return _of_srun([host], str(number), start.program)
    words = ["env", f"{VARIABLE}={number}", *start.program]
    if is_this_host(host.name) and CLUSTER_AGENT not in start.agent.program:
        return words
    words[1:1] = [f"{name}={os.environ[name]}" for name in _AT_ONCE if name in os.environ]
    return start.agent.command(host.name, words)


def _of_srun(hosts: Sequence[Host], number: str, program: Sequence[str]) -> list[str]:
    count = len(hosts)
    words = [*srun.basic(os.environ), "--mpi=none", f"--nodes={count}", f"--ntasks={count}"]
    words += ["--ntasks-per-node=1", f"--nodelist={','.join(host.name for host in hosts)}"]
    words += ["--cpu-bind=none", "--input=all", "--export=ALL", "--kill-on-bad-exit=0"]
    return [*words, "env", f"{VARIABLE}={number}", *program]


def first_line(start: Start) -> dict[str, object]:
    """Return the job, as guards expect it."""
    return {
        "ringar": ringar_version(),
        "hosts": [(host.name, host.slots) for host in start.hosts],
        "folder": os.getcwd(),
        "environment": {name: os.environ[name] for name in start.exported if name in os.environ},
        "interfaces": start.interfaces,
        "seen_at": _names(os.environ.get(SEEN_AT_VARIABLE, "")),
    }


def for_ranks() -> dict[str, object]:
    """Return the parameters of the network, which all ranks must have from the same file.

    Raises:
        UsageError: that file cannot be read.
    """
    path = os.environ.get(COST_MODEL_VARIABLE)
    if not path:
        return {}
    try:
        return {"cost_model": json.loads(Path(path).read_text())}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{COST_MODEL_VARIABLE}={path}: expected a JSON file with parameters: {error}"
        ) from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def parse(arguments: Sequence[str] | None) -> Start:
    """Read the words that `command` writes."""
    parser = argparse.ArgumentParser(prog="ringar.launchers.start.spread", description=__doc__)
    parser.add_argument("--hosts", type=hosts_module.parse, required=True, help="as ringarrun's")
    parser.add_argument("--export", type=_names, default=(), help="variables for all hosts")
    parser.add_argument("--agent", help="ssh and its options; none: srun")
    parser.add_argument("--network-interface", type=_names, default=(), help="as ringarrun's")
    parser.add_argument(
        "guard", nargs=argparse.REMAINDER, help="the guard of each host, and what ranks run"
    )
    options = parser.parse_args(arguments)
    return Start(
        program=tuple(options.guard),
        num_proc=sum(host.slots for host in options.hosts),
        hosts=tuple(options.hosts),
        exported=options.export,
        mpi=NONE,
        agent=Agent(tuple(shlex.split(options.agent))) if options.agent else None,
        interfaces=options.network_interface,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job to its end and return its exit code."""
    start = parse(arguments)
    try:
        if start.agent is None:
            commands = [_of_srun(start.hosts, BY_SLURM, start.program)]
        else:
            commands = [command_for(start, i, host) for i, host in enumerate(start.hosts)]
        guards = Guards(commands.__getitem__, first_line(start))
        words = guard.parser(None).parse_args(start.program[3:])  # behind "python -m MODULE"
        policy = WayFailurePolicy(guards, start.hosts, for_ranks(), words.job, words.max_failures)
        ways = [RankPlan(i, len(commands), i, len(commands)) for i in range(len(commands))]
        if commands[0][0] == "env":  # no ssh, which could not pass the file on
            ways[0] = replace(ways[0], files={"stdin": os.dup(0)})
        job = JobPlan("spread", ("ringarrun",), tuple(ways))
        return Runner(job, guards, policy, asked_by=signals.ASK).run()
    except UsageError as error:
        print(f"ringarrun: error: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
