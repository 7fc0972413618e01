"""Run a job whose ranks may change: a rank that dies does not end it, and others join.

The loop, the output and the end are those of `local.py`. What is added: each process has a socket
to the launcher (ringar/job/membership.py has the messages), and the launcher makes worlds of the
processes that live (`roster.py` says when).

- A rank dies. The others notice it in their collectives, leave the world, and enter again. When all
  of them wait, the launcher makes the next world of them, and of those that wait to join.
- The launcher starts another process in the place of the dead one, once the others train again: it
  would take the processor from them while they recover.
- The new process waits to join. The launcher tells the ranks, which enter again after their next
  commit.

The job ends as others do, and by itself if all ranks of the world have died, if they are fewer than
`--min-np` for `--elastic-timeout`, or after `--reset-limit` worlds beyond the first.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringar.job import membership
from ringar.launchers import failures, graces
from ringar.launchers.discovery import Discovery
from ringar.launchers.local import LocalJob
from ringar.launchers.plan import JobPlan, RankPlan
from ringar.launchers.ranks import Rank
from ringar.launchers.roster import Member, Roster, Slots, Stage

_AFTER_MEETING = 1.0  # seconds: the ranks restore their state and train again
_TICK = 0.1  # seconds between two looks while something is awaited


@dataclass(frozen=True)
class Limits:
    """The numbers of ranks, and what the user has limited: the options of `ringarrun`."""

    num_proc: int
    min_np: int
    max_np: int
    reset_limit: int | None
    timeout: float


def run(job: JobPlan, limits: Limits, discovery: Discovery | None) -> int:
    """Run `job`, whose plans are those of all slots, and return the exit code for the launcher.

    Raises:
        UsageError: the program cannot be executed, or a file for its output cannot be written.
    """
    return ElasticJob(job, limits, discovery).run()


class ElasticJob(LocalJob):
    """A job on this host whose ranks may change."""

    def __init__(self, job: JobPlan, limits: Limits, discovery: Discovery | None) -> None:
        super().__init__(job)
        self._limits, self._discovery = limits, discovery
        self._roster = Roster(limits.min_np)
        self._slots = Slots(graces.COOL_DOWN, graces.LONGEST_COOL_DOWN)
        self._sockets: dict[int, socket.socket] = {}  # by slot
        self._rank_of_slot: dict[int, Rank] = {}
        self._lost: list[Rank] = []  # since the last world was made
        self._told: set[int] = set()  # slots that know of joiners
        self._dismissed: set[int] = set()  # slots that discovery has taken away
        self._start_at = 0.0  # before it no process is started
        self._late_at = self._short_at = float("inf")
        self._trouble = ""  # why the launcher has ended the job
        self._said = ""

    # Starting

    def _make_segment(self) -> int:
        return -1  # each world has one of its own

    def _planned(self) -> list[RankPlan]:
        return list(self.job.ranks[: self._limits.num_proc])

    def _start_rank(self, plan: RankPlan) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs = theirs.fileno()
        with theirs:
            super()._start_rank(plan)
        mine.setblocking(False)
        self._sockets[plan.rank] = mine
        self._rank_of_slot[plan.rank] = self.ranks[-1]
        self._roster.living[plan.rank] = Member(plan.rank)
        self._watch_fd(mine.fileno(), selectors.EVENT_READ, lambda: self._read_from(plan.rank))

    def _inherited(self, plan: RankPlan) -> Mapping[str, int]:
        return {membership.VARIABLE: self._theirs}

    # Messages

    def _read_from(self, slot: int) -> None:
        member = self._roster.living.get(slot)
        try:
            message, _ = membership.receive(self._sockets[slot])
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._hang_up(slot)  # its process ends, or has closed its files
            return
        if member is None:
            return
        if message["kind"] == "leave":
            member.stage = Stage.LEFT
        elif message["kind"] == "started" and member.stage is Stage.MEETING:
            member.stage = Stage.RUNNING
        elif message["kind"] == "enter":
            self._on_enter(member)

    def _on_enter(self, member: Member) -> None:
        if member.stage is Stage.STARTING and self._roster.generation > 0:
            member.stage = Stage.APART
            place = {"generation": membership.ALONE, "rank": 0, "size": 1}
            self._tell(member, {"kind": "world", **place})
            return
        member.stage = Stage.WAITING
        self._stop_start()

    def _tell(
        self, member: Member, message: Mapping[str, Any], files: tuple[int, ...] = ()
    ) -> None:
        if member.slot in self._sockets:
            # What cannot be told is told by the end of the process, which comes next.
            with contextlib.suppress(OSError):
                membership.send(self._sockets[member.slot], message, files)

    def _stop_start(self) -> None:
        """Tell those that still wait in `ringar.init` that a rank of the world does not come."""
        for other in self._roster.at(Stage.MEETING):
            self._tell(other, {"kind": "lost"})

    def _hang_up(self, slot: int) -> None:
        if slot in self._sockets:
            mine = self._sockets.pop(slot)
            self._watch_fd(mine.fileno(), 0, lambda: None)
            mine.close()

    # The end of a process

    def _on_exit(self, rank: Rank, now: float) -> None:
        rank.stderr.drain()
        self._say(f"slot {rank.number}: process {rank.pid} ended with {rank.status}")
        member = self._roster.remove(rank.number)
        self._hang_up(rank.number)
        self._told.discard(rank.number)
        if rank.stopped or self.signal or rank.status is None:
            return
        self._stop_start()
        if member.stage is Stage.LEFT:
            self._slots.left(rank.number, now)
            self._err.message(f"{_name(rank, member)} has left; {self._rest()}")
        elif rank.status.ok:
            self._roster.is_finishing = True
        else:
            self._on_failure(rank, member, now)
        self._end_if_over(now)

    def _on_failure(self, rank: Rank, member: Member, now: float) -> None:
        self._lost.append(rank)
        if self._roster.generation == 0:
            super()._on_exit(rank, now)  # what cannot start ends the job, as in others
            return
        if self._roster.is_finishing:
            self.failures.append(rank)  # nobody does its work again
            return
        seconds = self._slots.failed(rank.number, now)
        cooling = f"; its slot is not used for {seconds:g} s" if seconds else ""
        text = f"{_name(rank, member)} {failures.ending(rank)}; {self._rest()}{cooling}"
        self._err.message(text)

    def _rest(self) -> str:
        count = sum(member.rank is not None for member in self._roster.living.values())
        return f"{count} rank{' of its world is' if count == 1 else 's of its world are'} left"

    def _end_if_over(self, now: float) -> None:
        """End the job if nobody is left who could go on."""
        if self._term_at is not None or self._roster.has_members():
            return
        if not self._roster.is_finishing:
            self.failures = self._lost
        self._term_at = now

    # The next world

    def _step(self, now: float) -> bool:
        has_ended = super()._step(now)
        if self._term_at is None and not has_ended:
            self._count_slots(now)
            self._start_due(now)
            self._meet(now)
            self._let_in()
        return has_ended

    def _timeout(self, now: float) -> float | None:
        timeout = super()._timeout(now)
        idle = len(self._roster.at(Stage.RUNNING)) == self._wanted() and self._discovery is None
        return timeout if idle else min(_TICK, _TICK if timeout is None else timeout)

    def _meet(self, now: float) -> None:
        roster = self._roster
        late = roster.awaited() if roster.generation > 0 and roster.is_meeting_due else []
        self._late_at = min(self._late_at, now + self._limits.timeout) if late else float("inf")
        if now >= self._late_at:
            for member in late:
                self._err.message(f"slot {member.slot}: does not come to the next world; killed")
                os.killpg(self._rank_of_slot[member.slot].pid, signal.SIGKILL)
        short = roster.is_short()
        self._short_at = min(self._short_at, now + self._limits.timeout) if short else float("inf")
        if now >= self._short_at:
            self._give_up(
                f"expected at least {roster.min_np} ranks (--min-np), received "
                f"{len(roster.at(Stage.WAITING))} for {self._limits.timeout:g} s "
                "(--elastic-timeout); start the job again where there is room for more",
                now,
            )
        if world := roster.next_world():
            self._make_world(world, now)

    def _make_world(self, world: list[Member], now: float) -> None:
        limit = self._limits.reset_limit
        if limit is not None and self._roster.generation > limit:
            self._give_up(
                f"expected at most {limit} worlds after the first (--reset-limit), and another "
                "rank was lost or joined; see why ranks end, or raise the limit",
                now,
            )
            return
        self._roster.begin(world)
        self._lost.clear()
        self._told.clear()
        segment = os.memfd_create("ringar-shared-segment")
        place = {"kind": "world", "generation": self._roster.generation, "size": len(world)}
        for member in world:
            self._tell(member, {**place, "rank": member.rank}, (segment,))
        os.close(segment)
        slots = ", ".join(str(member.slot) for member in world)
        self._say(f"world {self._roster.generation}: {len(world)} ranks, in slots {slots}")

    def _let_in(self) -> None:
        """Tell the ranks of the world that others wait to join."""
        if self._roster.joiners():
            for member in self._roster.at(Stage.RUNNING):
                if member.slot not in self._told:
                    self._told.add(member.slot)
                    self._tell(member, {"kind": "change"})

    def _give_up(self, why: str, now: float) -> None:
        self._trouble, self._term_at = why, now

    # Slots

    def _wanted(self) -> int:
        known = None if self._discovery is None else self._discovery.slots
        return self._limits.num_proc if known is None else min(known, self._limits.max_np)

    def _count_slots(self, now: float) -> None:
        if self._discovery is None:
            return
        self._discovery.look(now)
        if self._discovery.trouble not in ("", self._said):
            self._err.message(self._discovery.trouble)
        self._said = self._discovery.trouble
        wanted = self._wanted()
        for slot in self._roster.living:
            if slot >= wanted and slot not in self._dismissed:
                self._dismissed.add(slot)
                self._say(f"slot {slot}: is taken away")
                os.kill(self._rank_of_slot[slot].pid, signal.SIGTERM)
        self._dismissed &= set(self._roster.living)

    def _start_due(self, now: float) -> None:
        """Start processes in free slots, once the others do not recover."""
        roster = self._roster
        if roster.recovers():
            self._start_at = now + _AFTER_MEETING
        if roster.is_finishing or now < self._start_at:
            return
        for plan in self.job.ranks[: self._wanted()]:
            if plan.rank not in roster.living and now >= self._slots.free_at(plan.rank):
                self._start_rank(plan)

    # The end

    def _signal_all(self, *signals: int) -> None:
        is_done = self._roster.is_finishing and not self.failures and not self.signal
        why = self._trouble or ("" if is_done else "the launcher stops all ranks")
        for member in self._roster.living.values():
            self._tell(member, {"kind": "end", "why": why})
        super()._signal_all(*signals)

    def _end(self) -> None:
        super()._end()
        for slot in list(self._sockets):
            self._sockets.pop(slot).close()
        if self._discovery is not None:
            self._discovery.close()

    def _report(self) -> None:
        if self._trouble:
            self._err.message(self._trouble)
        else:
            super()._report()
            if self._has_nothing() and not self.signal:
                self._err.message("all ranks have left, and none has come to its end")

    def _last_ranks(self) -> list[Rank]:
        return list(self._rank_of_slot.values())

    def _has_nothing(self) -> bool:
        return not self.failures and not self._roster.is_finishing

    def _exit_code(self) -> int:
        return super()._exit_code() or int(bool(self._trouble) or self._has_nothing())


def _name(rank: Rank, member: Member) -> str:
    name = "a rank that had not joined" if member.rank is None else f"rank {member.rank}"
    return f"{name} (slot {rank.number}, process {rank.pid})"
