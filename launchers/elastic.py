"""Run an elastic job on this host: ranks that die do not end it, and others join.

The loop, the output and the end are those of `local.py`. What is added: each process has a socket
to the launcher, and `worlds.py` decides on what comes through it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringar.job import membership
from ringar.launchers import clock, failures
from ringar.launchers.discovery import Discovery
from ringar.launchers.fleet import End
from ringar.launchers.hosts import Host, is_this_host
from ringar.launchers.local import LocalJob
from ringar.launchers.member_sockets import MemberSockets
from ringar.launchers.plan import JobPlan, RankPlan
from ringar.launchers.ranks import Rank
from ringar.launchers.roster import Member
from ringar.launchers.worlds import Limits, Worlds


def run(job: JobPlan, limits: Limits, discovery: Discovery | None) -> int:
    """Run `job`, whose plans are those of all slots, and return the exit code for the launcher.

    Raises:
        UsageError: the program cannot be executed, or a file for its output cannot be written.
    """
    return ElasticJob(job, limits, discovery).run()


class ElasticJob(LocalJob):
    """A job on this host whose ranks may change; the fleet of its worlds."""

    def __init__(self, job: JobPlan, limits: Limits, discovery: Discovery | None) -> None:
        super().__init__(job)
        self._worlds = Worlds(limits, discovery, self)
        self._sockets = MemberSockets(self._watch_fd, self._worlds.on_message)
        self._rank_of_slot: dict[int, Rank] = {}
        self._passed_over: set[str] = set()  # hosts that discovery has told

    # The fleet

    def slots(self, hosts: Sequence[Host] | None) -> Sequence[int]:
        """Return the slots of this host."""
        if hosts is None:
            return range(len(self.job.ranks))
        others = {host.name for host in hosts if not is_this_host(host.name)}
        for name in sorted(others - self._passed_over):
            self.note(
                f"{name}: passed over, since this job starts its ranks on this host alone; leave "
                "--launcher local out, and install ssh if it is not there"
            )
        self._passed_over |= others
        count = sum(host.slots for host in hosts if is_this_host(host.name))
        return range(min(count, len(self.job.ranks)))

    def host_of(self, slot: int) -> int:
        """Return the number of the only host."""
        return 0

    def start(self, slot: int) -> None:
        """Start a process."""
        with self._sockets.opened(slot) as theirs:
            files = {membership.VARIABLE: theirs}
            self._start_rank(replace(self.job.ranks[slot], files=files))
        self._rank_of_slot[slot] = self.ranks[-1]

    def stop(self, slot: int, number: int) -> None:
        """Send the process of a slot a signal; SIGKILL goes to its helpers, too."""
        self._stop_slot(self._rank_of_slot[slot], number)

    def lose(self, slot: int) -> None:
        """Do nothing: this host is not lost."""

    def tell(self, slot: int, message: Mapping[str, Any]) -> None:
        """Send a message to the process of a slot."""
        self._sockets.tell(slot, message)

    def open_world(self, generation: int, world: Sequence[Member]) -> None:
        """Tell all members their place, and give them a segment."""
        segment = os.memfd_create("ringar-shared-segment")
        place = {"kind": "world", "generation": generation, "size": len(world)}
        for member in world:
            self._sockets.tell(member.slot, {**place, "rank": member.rank}, (segment,))
        os.close(segment)

    def end(self, when: float) -> None:
        """End the job then."""
        self._term_at = min(when, self._term_at or when)

    def note(self, text: str) -> None:
        """Show a message."""
        self._err.message(text)

    def say(self, text: str) -> None:
        """Show a message if the user has asked for details."""
        self._say(text)

    # The job

    def _make_segment(self) -> int:
        return -1  # each world has one of its own

    def _start(self) -> None:
        super()._start()
        self._worlds.begin(clock.now())

    def _planned(self) -> Sequence[RankPlan]:
        return ()

    def _inherited(self, plan: RankPlan) -> Mapping[str, int]:
        return plan.files

    def _on_exit(self, rank: Rank, now: float) -> None:
        rank.stderr.drain()
        self._say(f"slot {rank.number}: process {rank.pid} ended with {rank.status}")
        self._sockets.hang_up(rank.number)
        end = None
        if rank.status is not None:
            self._note_obedience(rank.status.exit_code, now)
        self._stop_helpers_of(rank)
        if not (rank.stopped or self.signal or rank.status is None):
            name, grace = f"process {rank.pid}", self._grace_after(rank)
            end = End(name, rank.status.exit_code, failures.ending(rank), grace, rank)
        self._worlds.on_end(rank.number, end, now)
        self.failures = [end.rank for end in self._worlds.failures if end.rank is not None]

    def _step(self, now: float) -> bool:
        has_ended = super()._step(now)
        if self._term_at is None and not has_ended:
            self._worlds.step(now)
        return has_ended

    def _timeout(self, now: float) -> float | None:
        return self._worlds.timeout(super()._timeout(now))

    # The end

    def _stop_ranks(self) -> None:
        self._worlds.on_stop()
        super()._stop_ranks()

    def _kill_all(self) -> None:
        self._worlds.on_stop()
        super()._kill_all()

    def _end(self) -> None:
        super()._end()
        self._sockets.close()
        self._worlds.close()

    def _report(self) -> None:
        if self._worlds.trouble:
            self._err.message(self._worlds.trouble)
        else:
            super()._report()
            if self._has_nothing() and not self.signal:
                self._err.message("all ranks have left, and none has come to its end")

    def _last_ranks(self) -> list[Rank]:
        return list(self._rank_of_slot.values())

    def _has_nothing(self) -> bool:
        return not self.failures and not self._worlds.roster.is_finishing

    def _exit_code(self) -> int:
        return super()._exit_code() or int(bool(self._worlds.trouble) or self._has_nothing())
