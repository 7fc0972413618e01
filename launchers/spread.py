"""Start the ranks of a job on its hosts without MPI: what mpirun does for a job of MPI.

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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ringar.launchers import clock, failures, graces, guard, signals, srun
from ringar.launchers import hosts as hosts_module
from ringar.launchers.check_build import ringar_version
from ringar.launchers.command import Command, Start
from ringar.launchers.errors import UsageError
from ringar.launchers.host_guard import ANSWER, BY_SLURM, VARIABLE
from ringar.launchers.hosts import Host, is_this_host
from ringar.launchers.local import LocalJob
from ringar.launchers.output import Stream
from ringar.launchers.plan import JobPlan, RankPlan
from ringar.launchers.ranks import Rank, bound_to_launcher
from ringar.launchers.ssh import Agent

#: Seconds for the answers of all hosts; the check before the start has just heard from each.
ANSWER_TIMEOUT = 60.0
_LOOK = 1.0  # seconds between two looks for those that do not come

CLUSTER_AGENT = "ringar.launchers.cluster_agent"
"""In the place of ssh: it reaches this host, too, where a member holds the resources."""

COST_MODEL_VARIABLE = "RINGAR_COST_MODEL"

SEEN_AT_VARIABLE = "RINGAR_SEEN_AT"
"""The addresses from which other hosts were reached by ssh, as they have seen them."""

#: What the interpreter needs on another host before it can read the other variables.
_AT_ONCE = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")


def command(start: Start) -> Command:
    """Return the command that starts the ranks."""
    words = [sys.executable, "-m", "ringar.launchers.spread"]
    words += ["--hosts", ",".join(map(str, start.hosts)), "--export", ",".join(start.exported)]
    if start.agent is not None:
        words += ["--agent", str(_watching(start.agent))]
    if start.interfaces:
        words += ["--network-interface", ",".join(start.interfaces)]
    return Command((*words, *start.program))


def _watching(agent: Agent) -> Agent:
    """Return `agent` with the options by which ssh notices that a host is gone."""
    if os.path.basename(agent.program[0]) != "ssh":
        return agent
    options = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
    return replace(agent, options=(*agent.options, *options))


class SpreadJob(LocalJob):
    """A job whose processes on this host are the ways to its hosts: guards, and ssh to others.

    Args:
        hosts: the hosts, with their ranks.
        commands: the command for each process: one for each host, or one for all of them.
        first_line: the job, as guards expect it.
        for_ranks: what each rank is told beside the addresses.
        job: its name.
        max_failures: how many ranks may fail while the others go on.
    """

    #: What the supervisor sends if the ranks have time to save: hosts get it, and end in time.
    also_stops: tuple[int, ...] = (signals.ASK,)
    stops_itself = False  # the supervisor does

    def __init__(
        self,
        hosts: Sequence[Host],
        commands: Sequence[Sequence[str]],
        first_line: dict[str, object],
        for_ranks: dict[str, object],
        job: str = "",
        max_failures: int = 0,
    ) -> None:
        count = len(commands)
        ways = tuple(RankPlan(i, count, i, count) for i in range(count))
        super().__init__(JobPlan("spread", ("ringarrun",), ways))
        self._hosts, self._commands, self._first_line = hosts, commands, first_line
        self._for_ranks, self._name, self._max_failures = for_ranks, job, max_failures
        self._addresses: dict[int, list[str]] = {}  # by host
        self._answers_until = clock.now() + ANSWER_TIMEOUT
        self._stdin_of_rank_0 = os.dup(0)

    # Starting

    def _make_segment(self) -> int:
        return -1

    def _start_janitor(self) -> None:
        pass  # each host has its own

    def _start(self) -> None:
        super()._start()
        for rank in self.ranks:
            line = self._first_line
            if self._starts_rank_0(rank.number):
                line = {**line, "stdin": self._stdin_of_rank_0}
            self._tell(rank, line)
        os.close(self._stdin_of_rank_0)

    def _starts_rank_0(self, number: int) -> bool:
        """Return whether a process starts rank 0 without ssh, which could not pass a file on."""
        return number == 0 and bool(self._commands) and self._commands[0][0] == "env"

    def _spawn(self, plan: RankPlan, outputs: tuple[int, int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command_of(plan),
            stdin=subprocess.PIPE,
            stdout=outputs[0],
            stderr=outputs[1],
            pass_fds=(self._stdin_of_rank_0,) if self._starts_rank_0(plan.rank) else (),
            start_new_session=True,
            preexec_fn=bound_to_launcher(signal.SIGTERM),
        )

    def _command_of(self, plan: RankPlan) -> Sequence[str]:
        return self._commands[plan.rank]

    def _stream(self, plan: RankPlan, name: str, fd: int) -> Stream:
        screen = self._out if name == "stdout" else self._err
        return Stream(fd, screen, live=plan.rank == 0, takes=self._take_answer, keeps=ANSWER)

    def _take_answer(self, line: bytes) -> bool:
        """Take a line with the addresses of a host; the last one lets the ranks start."""
        if not line.startswith(ANSWER):
            return False
        answer = json.loads(line[len(ANSWER) :])
        self._addresses[answer["host"]] = answer["addresses"]
        if len(self._addresses) == len(self._hosts):
            ordered = [one for host in sorted(self._addresses) for one in self._addresses[host]]
            world = {**self._for_ranks, "addresses": ordered, "secret": secrets.token_hex(32)}
            for rank in self.ranks:
                self._tell(rank, world)
        return True

    def _tell(self, rank: Rank, what: object) -> None:
        pipe = rank.process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # its end says more
            pipe.write(json.dumps(what).encode() + b"\n")
            pipe.flush()

    # Running

    def _step(self, now: float) -> bool:
        self._check_answers(now)
        return super()._step(now)

    def _check_answers(self, now: float) -> None:
        late = [i for i in range(len(self._hosts)) if i not in self._addresses]
        if late and now > self._answers_until and self._term_at is None:
            names = ", ".join(self._hosts[i].name for i in late)
            self._err.message(
                f"expected an answer of every host in {ANSWER_TIMEOUT:.0f} s, received none of "
                f"{names}; nothing was started"
            )
            self._on_signal(signal.SIGTERM)

    def _on_signal(self, number: int) -> None:
        if number in (signals.ASK, *signals.USER):
            self._passed_on.add(number)
            self._tell_guards(number)
        else:
            super()._on_signal(number)

    def _stop_or_go_on(self, number: int) -> None:
        (clock.stop if number == signal.SIGTSTP else clock.go_on)()
        self._tell_guards(number)

    def _timeout(self, now: float) -> float | None:
        timeout = super()._timeout(now)
        if len(self._addresses) < len(self._hosts):
            timeout = min(_LOOK, _LOOK if timeout is None else timeout)
        return timeout

    def _stop_ranks(self) -> None:
        self._tell_guards(signal.SIGTERM)

    def _stop_helpers(self) -> None:
        pass  # guards do

    def _tell_guards(self, number: int) -> None:
        for rank in self.ranks:
            self._tell(rank, {"signal": number})

    def _kill_grace(self) -> float:
        return graces.KILL + graces.SETTLE  # guards take the first of these

    # The end

    def _goes_on(self) -> bool:
        lost = sum(self._hosts[way.number].slots for way in self.failures if _is_lost(way))
        guards_failed = not all(map(_is_lost, self.failures))
        return not guards_failed and lost <= self._max_failures and len(self._commands) > 1

    def _on_allowed_failure(self, rank: Rank) -> None:
        """Report the ranks of a host that is lost; the supervisor may know of some."""
        self._report_way(rank)
        ranks = [number for number, host in enumerate(self._hosts) for _ in range(host.slots)]
        for one in (one for one, number in enumerate(ranks) if number == rank.number):
            way = f"{self._name}.{rank.number}", one, len(ranks), self._hosts[rank.number].name
            ending = f"failed with its host: the way to it {failures.ending(rank)}"
            self._err.line(guard.report(*way, ending).encode())

    def _report(self) -> None:
        """Name the hosts whose connection has ended; guards report all else by themselves."""
        if not self._goes_on():
            for rank in filter(_is_lost, self.failures):
                self._report_way(rank)

    def _report_way(self, way: Rank) -> None:
        of_each = len(self._commands) == len(self._hosts)
        name = self._hosts[way.number].name if of_each else "srun"
        self._err.message(
            f"{name}: the way to it {failures.ending(way)}; the host or the connection "
            "to it may be gone"
        )


def _is_lost(way: Rank) -> bool:
    """Return whether the way to a host has ended, and not its guard."""
    return way.status is not None and (way.status.code == 255 or bool(way.status.signal))


def _commands(options: argparse.Namespace) -> list[list[str]]:
    """Return the command for each host, or the one of srun for all of them."""
    if not options.agent:
        return [_of_srun(options.hosts, BY_SLURM, options.guard)]
    return [command_for(options, number, host) for number, host in enumerate(options.hosts)]


def command_for(options: argparse.Namespace, number: int, host: Host) -> list[str]:
    """Return the command that starts the guard of one host."""
    if not options.agent:
        return _of_srun([host], str(number), options.guard)
    words = ["env", f"{VARIABLE}={number}", *options.guard]
    agent = shlex.split(options.agent)
    if is_this_host(host.name) and CLUSTER_AGENT not in agent:
        return words
    words[1:1] = [f"{name}={os.environ[name]}" for name in _AT_ONCE if name in os.environ]
    return [*agent, host.name, shlex.join(words)]


def _of_srun(hosts: Sequence[Host], number: str, guard: Sequence[str]) -> list[str]:
    count = len(hosts)
    words = [*srun.basic(os.environ), "--mpi=none", f"--nodes={count}", f"--ntasks={count}"]
    words += ["--ntasks-per-node=1", f"--nodelist={','.join(host.name for host in hosts)}"]
    words += ["--cpu-bind=none", "--input=all", "--export=ALL", "--kill-on-bad-exit=0"]
    return [*words, "env", f"{VARIABLE}={number}", *guard]


def first_line(options: argparse.Namespace) -> dict[str, object]:
    """Return the job, as guards expect it."""
    return {
        "ringar": ringar_version(),
        "hosts": [(host.name, host.slots) for host in options.hosts],
        "folder": os.getcwd(),
        "environment": {name: os.environ[name] for name in options.export if name in os.environ},
        "interfaces": options.network_interface,
        "seen_at": _names(os.environ.get(SEEN_AT_VARIABLE, "")),
    }


def for_ranks() -> dict[str, object]:
    """Return what all ranks must have read from the same file: the parameters of the network.

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


def _names(text: str) -> list[str]:
    return text.split(",") if text else []


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the options that `command` writes."""
    parser = argparse.ArgumentParser(prog="ringar.launchers.spread", description=__doc__)
    parser.add_argument("--hosts", type=hosts_module.parse, required=True, help="as ringarrun's")
    parser.add_argument("--export", type=_names, default=[], help="variables for all hosts")
    parser.add_argument("--agent", default="", help="ssh and its options; none: srun")
    parser.add_argument("--network-interface", type=_names, default=[], help="as ringarrun's")
    parser.add_argument(
        "guard", nargs=argparse.REMAINDER, help="the guard of each host, and what ranks run"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job to its end and return its exit code."""
    options = parse(arguments)
    try:
        commands, line = _commands(options), first_line(options)
        guards = guard.parser(None).parse_args(options.guard[3:])  # behind "python -m MODULE"
        job = SpreadJob(options.hosts, commands, line, for_ranks(), guards.job, guards.max_failures)
        return job.run()
    except UsageError as error:
        print(f"ringarrun: error: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
