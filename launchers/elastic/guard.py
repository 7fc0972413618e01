"""The processes on one host of an elastic job over several hosts.

The guard of the host (host_guard.py) starts them when it is told, and passes messages on between
them and the launcher (ringar/job/membership.py). After the line with the job, the lines are:

    spread_members.py                                      guard.py
    start: a slot, its number on this host, and,
    for its first rank, addresses to reach           ->    a process starts
                                                     <-    its process id, and where it listens,
                                                           or the addresses without an answer
                                                     <-    said: a message of a process
    tell: a message for the process of a slot        ->    passes it on
    world: who has which rank, addresses, secret     ->    tells the members, with a new segment
    stop: a signal for the process of a slot         ->
                                                     <-    ended: how a process has ended
    signal: the end of the job                       ->    ends all processes, and itself
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringar.job import membership, reach
from ringar.job.tcp import LISTENER_VARIABLE
from ringar.launchers.elastic.member_sockets import MemberSockets
from ringar.launchers.plan.job_plan import JobPlan
from ringar.launchers.start import guard, host_guard, segment
from ringar.launchers.start.fork import Fork
from ringar.launchers.start.host_guard import Control
from ringar.launchers.supervise import failures, signals
from ringar.launchers.supervise.failure_policy import grace_for_cause
from ringar.launchers.supervise.guard_failure_policy import GuardFailurePolicy
from ringar.launchers.supervise.parts import Joins
from ringar.launchers.supervise.ranks import Rank
from ringar.launchers.supervise.runner import Runner


class HostMembers(Joins):
    """The processes of the slots of one host, as the launcher wants them.

    Args:
        control: where the launcher's lines come from.
        listen: makes a socket that listens for a process.
        fork: starts the processes.
        plan: plans so many slots, if the host gets more of them.
    """

    def __init__(
        self,
        control: Control,
        listen: Callable[[], socket.socket],
        fork: Fork,
        plan: Callable[[int], JobPlan],
    ) -> None:
        self._control, self._listen, self._fork, self._plan = control, listen, fork, plan
        self._sockets = MemberSockets(
            lambda *fd: self.runner.watch(*fd),
            lambda slot, message: self._answer(slot, said=message),
        )
        self._rank_of_slot: dict[int, Rank] = {}

    def _answer(self, slot: int, **fields: object) -> None:
        self.runner.out.line(host_guard.answer({"slot": slot, **fields}))

    # Messages of the launcher

    def _take(self, message: Mapping[str, Any]) -> None:
        if "start" in message:
            addresses = message["reach"]
            if numbers := reach.unreached(addresses):
                self._answer(message["start"], unreached=[addresses[number] for number in numbers])
            else:
                self._start_slot(message["start"], message["local"])
        elif "tell" in message:
            self._sockets.tell(message["tell"], message["message"])
        elif "world" in message:
            self._open_world(message["world"], message["ranks"])
        elif "stop" in message:
            self._fork.stop_rank(self._rank_of_slot[message["stop"]], message["number"])
        else:
            self.runner.on_signal(message["signal"])

    def _start_slot(self, slot: int, local: int) -> None:
        ranks = self.runner.job.ranks
        ranks = ranks if local < len(ranks) else self._plan(local + 1).ranks
        with self._listen() as listener, self._sockets.opened(slot) as descriptor:
            files = {LISTENER_VARIABLE: listener.fileno(), membership.VARIABLE: descriptor}
            rank = self.runner.start_rank(replace(ranks[local], rank=slot, files=files))
            self._rank_of_slot[slot] = rank
            self._answer(slot, started=rank.pid, address=host_guard.text_of(listener))

    def _open_world(self, world: Mapping[str, Any], ranks: Mapping[str, int]) -> None:
        shared = segment.make()
        hosts = host_guard.file_with(world)
        place = {"generation": world["generation"], "size": len(world["hosts"])}
        for slot, rank in ranks.items():
            message = {"kind": "world", **place, "rank": rank}
            self._sockets.tell(int(slot), message, (shared, hosts))
        os.close(shared)
        os.close(hosts)

    # Called by the runner

    def begin(self, now: float) -> None:
        """Take the lines that came with the job."""
        if self._control.has_line():
            self._control.take_lines(self.runner, self._take)

    def follow(self) -> None:
        """Take the lines that come."""
        self._control.follow(self.runner, self._take)

    def is_running(self) -> bool:
        """Return whether the launcher may start further processes."""
        return not self.runner.stop.signal

    def on_exit(self, rank: Rank, now: float) -> None:
        """Tell the launcher how a process has ended."""
        self._fork.stop_helpers_of(rank)
        self._sockets.hang_up(rank.number)
        if rank.status is not None:
            grace = grace_for_cause(rank)
            end = {"ending": failures.ending(rank), "code": rank.status.exit_code, "grace": grace}
            self._answer(rank.number, ended=end, stopped=rank.is_stopped)

    def close(self) -> None:
        """Close all sockets."""
        self._sockets.close()


class HostFailurePolicy(GuardFailurePolicy):
    """Decide on failures of the processes of a host; the launcher knows of each."""

    def report(self) -> None:
        """Do nothing."""


def make(options: argparse.Namespace) -> Runner | None:
    """Take the job from `spread_members.py`; None if that has ended.

    Raises:
        UsageError: this host cannot run processes of the job; the message says why.
    """
    control = Control()
    this_host = host_guard.take(control, options, grows=True)
    if this_host is None:
        return None

    def plan(slots: int) -> JobPlan:
        hosts = list(this_host.hosts)
        hosts[this_host.number] = replace(hosts[this_host.number], slots=slots)
        resized = replace(this_host, hosts=hosts)
        return host_guard.plan_of(options, resized, [{}] * slots, is_elastic=True)

    fork = Fork(lambda rank: subprocess.DEVNULL, has_segment=False)
    members = HostMembers(control, this_host.listen, fork, plan)
    policy = HostFailurePolicy(0.0)
    runner = Runner(plan(this_host.slots), fork, policy, members, asked_by=signals.ASK)
    members.follow()
    return runner


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the processes of this host to their end and return the exit code."""
    options = guard.parser(__doc__).parse_args(arguments)
    return guard.run(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
