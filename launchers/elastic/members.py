"""Run an elastic job on this host: ranks that die do not end it, and others join.

Each process has a socket to the launcher. `next_world.py` decides how to act on its messages.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringar.job import membership
from ringar.launchers.elastic.discovery import Discovery
from ringar.launchers.elastic.fleet import End
from ringar.launchers.elastic.member_sockets import MemberSockets
from ringar.launchers.elastic.next_world import Limits, Worlds
from ringar.launchers.elastic.roster import Member
from ringar.launchers.plan.hosts import Host, is_this_host
from ringar.launchers.plan.job_plan import JobPlan
from ringar.launchers.start import segment
from ringar.launchers.start.fork import Fork
from ringar.launchers.supervise import failures
from ringar.launchers.supervise.failure_policy import FailurePolicy, grace_for_cause
from ringar.launchers.supervise.parts import Joins
from ringar.launchers.supervise.ranks import Rank
from ringar.launchers.supervise.runner import Runner


def run(job: JobPlan, limits: Limits, discovery: Discovery | None) -> int:
    """Run `job`, whose plans are those of all slots, and return the exit code for the launcher.

    Raises:
        UsageError: the program cannot be executed, or a file for its output cannot be written.
    """
    fork = Fork(has_segment=False)  # each world has a segment
    members = Members(limits, discovery, fork)
    return Runner(job, fork, MemberFailurePolicy(members), members).run()


class Elastic(Joins):
    """Ranks that change as `Worlds` decides; the fleets are derived from it."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds = worlds

    # Called by the runner

    def begin(self, now: float) -> None:
        """Start the first processes."""
        self.worlds.begin(now, self.absentees())

    def absentees(self) -> Collection[int]:
        """Return the slots of hosts that cannot take part at the beginning."""
        return ()

    def step(self, now: float) -> None:
        """Take the steps that are due, unless the job ends."""
        if self.runner.stop.term_at is None:
            self.worlds.step(now)

    def timeout(self, timeout: float | None) -> float | None:
        """Return how long to wait for the next step, at most `timeout`."""
        return self.worlds.timeout(timeout)

    def on_stop(self) -> None:
        """Tell the processes that the job ends."""
        self.worlds.on_stop()

    def close(self) -> None:
        """End the script of discovery, if it runs."""
        self.worlds.close()

    # Called by the worlds

    def end(self, when: float) -> None:
        """End the job then."""
        self.runner.stop.at(when)

    def note(self, text: str) -> None:
        """Show a message."""
        self.runner.note(text)

    def say(self, text: str) -> None:
        """Show a message if the user has asked for details."""
        self.runner.say(text)


class Members(Elastic):
    """The processes of an elastic job on this host."""

    def __init__(self, limits: Limits, discovery: Discovery | None, fork: Fork) -> None:
        super().__init__(Worlds(limits, discovery, self))
        self._fork = fork
        self._sockets = MemberSockets(lambda *fd: self.runner.watch(*fd), self.worlds.on_message)
        self.rank_of_slot: dict[int, Rank] = {}
        self._passed_over: set[str] = set()  # hosts that discovery has told

    def slots(self, hosts: Sequence[Host] | None) -> Sequence[int]:
        """Return the slots of this host."""
        count = len(self.runner.job.ranks)
        if hosts is None:
            return range(count)
        remote_names = {host.name for host in hosts if not is_this_host(host.name)}
        for name in sorted(remote_names - self._passed_over):
            self.note(
                f"{name}: passed over, since this job starts its ranks on this host alone; leave "
                "--launcher local out, and install ssh if it is not there"
            )
        self._passed_over |= remote_names
        return range(min(count, sum(host.slots for host in hosts if is_this_host(host.name))))

    def host_of(self, slot: int) -> int:
        """Return the number of the only host."""
        return 0

    def start(self, slot: int) -> None:
        """Start a process."""
        with self._sockets.opened(slot) as descriptor:
            plan = replace(self.runner.job.ranks[slot], files={membership.VARIABLE: descriptor})
            self.rank_of_slot[slot] = self.runner.start_rank(plan)

    def stop(self, slot: int, number: int) -> None:
        """Send the process of a slot a signal; SIGKILL goes to its helpers, too."""
        self._fork.stop_rank(self.rank_of_slot[slot], number)

    def lose(self, slot: int) -> None:
        """Do nothing: this host is not lost."""

    def tell(self, slot: int, message: Mapping[str, Any]) -> None:
        """Send a message to the process of a slot."""
        self._sockets.tell(slot, message)

    def open_world(self, generation: int, world: Sequence[Member]) -> None:
        """Tell all members their place, and give them a segment."""
        shared = segment.make()
        place = {"kind": "world", "generation": generation, "size": len(world)}
        for member in world:
            self._sockets.tell(member.slot, {**place, "rank": member.rank}, (shared,))
        os.close(shared)

    def on_exit(self, rank: Rank, now: float) -> None:
        """Take the end of a process."""
        policy = self.runner.failure_policy
        self.say(f"slot {rank.number}: process {rank.pid} ended with {rank.status}")
        self._sockets.hang_up(rank.number)
        end = None
        if rank.status is not None:
            policy.note_obedience(rank.status.exit_code, now)
        self._fork.stop_helpers_of(rank)
        if not (rank.is_stopped or self.runner.stop.signal or rank.status is None):
            name, grace = f"process {rank.pid}", grace_for_cause(rank)
            end = End(name, rank.status.exit_code, failures.ending(rank), grace, rank)
        self.worlds.on_end(rank.number, end, now)
        policy.failures = [end.rank for end in self.worlds.failures if end.rank is not None]

    def close(self) -> None:
        """Close all sockets, too."""
        self._sockets.close()
        super().close()


class MemberFailurePolicy(FailurePolicy):
    """Decide on failures of an elastic job on this host."""

    def __init__(self, members: Members) -> None:
        super().__init__()
        self._members = members

    def report(self) -> None:
        """Tell the user why the job has ended, unless it has come to its end."""
        if self._members.worlds.trouble:
            self.runner.note(self._members.worlds.trouble)
            return
        super().report()
        if self._has_nothing() and not self.stop.signal:
            self.runner.note("all ranks have left, and none has come to its end")

    def last_ranks(self) -> Sequence[Rank]:
        """Return the last process of each slot."""
        return list(self._members.rank_of_slot.values())

    def exit_code(self) -> int:
        """Return the exit code: 1 if no rank has come to its end."""
        trouble = bool(self._members.worlds.trouble)
        return super().exit_code() or int(trouble or self._has_nothing())

    def _has_nothing(self) -> bool:
        return not self.failures and not self._members.worlds.roster.is_finishing
