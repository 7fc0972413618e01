"""The worlds of an elastic job: who is in the next one, when it begins, and who joins it later.

`Worlds` decides; a *fleet* runs the processes: those of this host (members.py), or guards on the
job's hosts (spread_members.py). `roster.py` has the stages of a process.

- A rank dies. The others notice it in their collectives, leave the world, and enter again. When all
  of them wait, the next world is made of them, and of those that wait to join.
- Another process starts in the place of the dead one, once the others train again: it would take
  the processor from them while they recover.
- The new process waits in `ringar.init` to join. The ranks are told, and enter again after their
  next commit.
- A host is no longer listed. Its ranks are told to leave, as soon as `--min-np` others train: when
  all hosts are replaced, the state passes from the old ones to the new ones. A list with too few
  hosts takes none away.

The job ends as others do, and by itself if all ranks of the world have died, if they are fewer than
`--min-np` for `--elastic-timeout`, or after `--reset-limit` worlds beyond the first.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringar.launchers.elastic import partition
from ringar.launchers.elastic.discovery import Discovery
from ringar.launchers.elastic.fleet import End, Fleet
from ringar.launchers.elastic.roster import Member, Roster, Slots, Stage
from ringar.launchers.supervise import failures, graces

_AFTER_MEETING = 1.0  # seconds: the ranks restore their state and train again
_TICK = 0.1  # seconds between two looks while something is awaited
_RETRY = 5.0  # seconds before ranks that could not reach each other try again
_REPEAT = 60.0  # seconds after which a text that still holds is shown again


@dataclass(frozen=True)
class Limits:
    """The numbers of ranks and the limits of the user: the options of `ringarrun`."""

    num_proc: int
    min_np: int
    max_np: int
    reset_limit: int | None
    timeout: float


class Worlds:
    """Decide which processes run, and make worlds of them.

    Attributes:
        roster: the processes.
        trouble: why the job has been ended; "" if it was not.
        failures: the ends that are the job's own, in their order.
    """

    def __init__(self, limits: Limits, discovery: Discovery | None, fleet: Fleet) -> None:
        self.roster = Roster(limits.min_np)
        self.trouble = ""
        self.failures: list[End] = []
        self._limits, self._discovery, self._fleet = limits, discovery, fleet
        self._slots = Slots(graces.COOL_DOWN, graces.LONGEST_COOL_DOWN)
        self._losses: list[End] = []  # since the last world was made
        self._told_slots: set[int] = set()  # slots that know of joiners
        self._dismissed_slots: set[int] = set()  # slots that discovery has taken away
        self._kept_slots: set[int] = set()  # slots that it would take away, if there were others
        self._kill_times: dict[int, float] = {}  # slots whose process did not come, and since when
        self._shown_at: dict[str, float] = {}  # texts, and when they were shown
        self._cut_hosts: set[tuple[int, int]] = set()  # pairs: one has not reached the other
        self._cut_at = float("inf")  # since when ranks cannot meet for that reason
        self._meet_at = 0.0  # before it there is no further attempt
        self._start_at = 0.0  # before it no process is started
        self._late_at = self._short_at = float("inf")
        self._is_over = False

    @property
    def cause(self) -> End | None:
        """The end that made others fail, if the job has failed."""
        if not self.failures:
            return None
        return failures.first_cause(self.failures, lambda end: end.grace > 0)

    # Called by the fleet

    def begin(self, now: float, absentees: Collection[int] = ()) -> None:
        """Start the first processes.

        Args:
            now: the time.
            absentees: slots of hosts that cannot take part now; they are tried again later.
        """
        for slot in absentees:
            self._slots.note_absence(slot, now)
        for slot in self._target_slots(now):
            self._start(slot)

    def on_message(self, slot: int, message: Mapping[str, Any]) -> None:
        """Take a message of a process."""
        member = self.roster.living.get(slot)
        if member is None:
            return
        if message["kind"] == "leave":
            member.stage = Stage.LEFT
        elif message["kind"] == "started" and member.stage is Stage.MEETING:
            member.stage = Stage.RUNNING
        elif message["kind"] == "enter":
            self._note_cut(member, message.get("unreached", ()))
            self._on_enter(member)

    def on_end(self, slot: int, end: End | None, now: float) -> None:
        """Take the end of a process; None: the job is ending, and had stopped it."""
        member = self.roster.remove(slot)
        self._told_slots.discard(slot)
        if self._kill_times.pop(slot, None) is not None and end is not None:
            end = replace(end, ending="is ended")
        if end is None or self.trouble:
            return
        end = replace(end, process=_name(end, member))
        self._stop_start()
        if member.stage is Stage.LEFT:
            self._slots.note_departure(slot, now)
            self._fleet.note(f"{end.process} has left; {self._rest()}")
        elif end.code == 0:
            self.roster.is_finishing = True
        else:
            self._on_failure(end, member, now)
        if not self.roster.has_members():
            self._end(now)

    def on_stop(self) -> None:
        """Tell the processes that the job ends."""
        is_done = self.roster.is_finishing and not self.failures and self._is_over
        why = self.trouble or ("" if is_done else "the launcher stops all ranks")
        for slot in self.roster.living:
            self._fleet.tell(slot, {"kind": "end", "why": why})

    def step(self, now: float) -> None:
        """Take the steps that are due."""
        if self._is_over:
            return
        self._look_for_hosts(now)
        self._start_due(now)
        self._meet(now)
        self._let_in()

    def timeout(self, timeout: float | None) -> float | None:
        """Return how long to wait for the next step, at most `timeout`."""
        slots, most = self._slots_now()
        settled = len(self.roster.at(Stage.RUNNING)) == min(len(slots), most)
        if settled and self._discovery is None:
            return timeout
        return _TICK if timeout is None else min(_TICK, timeout)

    def close(self) -> None:
        """End the script of discovery, if it runs."""
        if self._discovery is not None:
            self._discovery.close()

    # The processes

    def _start(self, slot: int) -> None:
        self.roster.living[slot] = Member(slot)
        self._fleet.start(slot)

    def _on_enter(self, member: Member) -> None:
        if member.stage is Stage.STARTING and self.roster.generation > 0:
            self._fleet.say(f"slot {member.slot}: waits to join, after the next commit")
        member.stage = Stage.WAITING
        self._stop_start()

    def _note_cut(self, member: Member, unreached: Collection[int]) -> None:
        """Note which hosts a process could not reach when the ranks of its world have not met."""
        host = self._fleet.host_of(member.slot)
        for other in self.roster.living.values():
            if (other.world, other.rank in unreached) == (member.world, True):
                self._cut_hosts.add((host, self._fleet.host_of(other.slot)))

    def _stop_start(self) -> None:
        """Tell members that still wait in `ringar.init` that a rank of the world does not come."""
        for other in self.roster.at(Stage.MEETING):
            self._fleet.tell(other.slot, {"kind": "lost"})

    def _on_failure(self, end: End, member: Member, now: float) -> None:
        self._losses.append(end)
        count = len(self.roster.living)
        if self.roster.generation == 0 and end.with_host and count >= self.roster.min_np:
            self._slots.note_absence(member.slot, now)
            self._fleet.note(f"{end.process} {end.ending}; {count} start without it")
            return
        if self.roster.is_finishing or self.roster.generation == 0:
            # Its work is not done again. A process that cannot start ends the job, as elsewhere.
            self.failures.append(end)
            if self.roster.generation == 0:
                self._end(now + end.grace)
            return
        seconds = self._slots.note_failure(member.slot, now)
        cooling = f"; its slot is not used for {seconds:g} s" if seconds else ""
        self._fleet.note(f"{end.process} {end.ending}; {self._rest()}{cooling}")

    def _rest(self) -> str:
        count = sum(member.rank is not None for member in self.roster.living.values())
        return f"{count} rank{' of its world is' if count == 1 else 's of its world are'} left"

    def _end(self, when: float) -> None:
        if self._is_over:
            return
        self._is_over = True
        if not self.roster.is_finishing and not self.trouble:
            self.failures = self.failures or self._losses
        self._fleet.end(when)

    # The next world

    def _meet(self, now: float) -> None:
        roster = self.roster
        latecomers = roster.awaited() if roster.generation > 0 and roster.is_meeting_due else []
        deadline = now + self._limits.timeout
        self._late_at = min(self._late_at, deadline) if latecomers else float("inf")
        if now >= self._late_at:
            for member in latecomers:
                self._kill(member.slot, now)
        self._short_at = min(self._short_at, deadline) if roster.is_short() else float("inf")
        if now >= self._short_at:
            self._give_up(
                f"expected at least {roster.min_np} ranks (--min-np), received "
                f"{len(roster.at(Stage.WAITING))} for {self._limits.timeout:g} s "
                "(--elastic-timeout); start the job again where there is room for more",
                now,
            )
        elif world := roster.next_world():
            if not self._part(world, now) and now >= self._meet_at:
                self._make_world(world, now)
        elif roster.has_met():
            self._cut_hosts.clear()
            self._cut_at = float("inf")

    def _part(self, world: Sequence[Member], now: float) -> bool:
        """End the processes of hosts that others cannot reach; return whether there are any.

        If too few ranks would be left, the ranks try again, for as long as they may be too few.
        """
        ranks: dict[int, int] = {}
        for member in self._by_host(world):
            host = self._fleet.host_of(member.slot)
            ranks[host] = ranks.get(host, 0) + 1
        out = partition.left_out(ranks, self._cut_hosts)
        if not out:
            return False
        left = sum(count for host, count in ranks.items() if host not in out)
        if left >= self.roster.min_np or self.roster.is_finishing:
            for member in world:
                if self._fleet.host_of(member.slot) in out:
                    self._kill(member.slot, now, f"cannot reach all of the {left} ranks that go on")
            return True
        self._cut_at = min(self._cut_at, now)
        if now >= self._cut_at + self._limits.timeout:
            self._give_up(
                f"expected hosts that reach each other, for at least {self.roster.min_np} ranks "
                f"(--min-np); received {left} on such hosts, for {self._limits.timeout:g} s "
                "(--elastic-timeout); see that the hosts' addresses can be reached, or choose "
                "others: --network-interface",
                now,
            )
            return True
        self._note_rarely(
            f"hosts cannot reach each other, and only {left} ranks would be left; trying again", now
        )
        self._cut_hosts.clear()
        self._meet_at = now + _RETRY
        return True

    def _kill(self, slot: int, now: float, why: str = "does not come to the next world") -> None:
        """Kill a process; lose its host where that has no effect."""
        if slot not in self._kill_times:
            self._kill_times[slot] = now
            self._slots.note_absence(slot, now)
            member = self.roster.living[slot]
            self._fleet.note(f"rank {member.rank} (slot {slot}) {why}; killed")
            self._fleet.stop(slot, signal.SIGKILL)
        elif now > self._kill_times[slot] + 2 * graces.KILL:
            self._kill_times[slot] = now
            self._fleet.lose(slot)

    def _make_world(self, world: list[Member], now: float) -> None:
        limit = self._limits.reset_limit
        if limit is not None and self.roster.generation > limit:
            self._give_up(
                f"expected at most {limit} worlds after the first (--reset-limit), and another "
                "rank was lost or joined; see why ranks end, or raise the limit",
                now,
            )
            return
        world = self._by_host(world)
        self.roster.begin(world)
        self._losses.clear()
        self._told_slots.clear()
        self._fleet.open_world(self.roster.generation, world)
        slots = ", ".join(str(member.slot) for member in world)
        self._fleet.say(f"world {self.roster.generation}: {len(world)} ranks, in slots {slots}")

    def _by_host(self, world: Sequence[Member]) -> list[Member]:
        """Return the members grouped by host, the host of the first member first."""
        order: dict[int, int] = {}
        for member in world:
            order.setdefault(self._fleet.host_of(member.slot), len(order))
        return sorted(world, key=lambda member: order[self._fleet.host_of(member.slot)])

    def _let_in(self) -> None:
        """Tell the ranks of the world that others wait to join."""
        if self.roster.joiners():
            for member in self.roster.at(Stage.RUNNING):
                if member.slot not in self._told_slots:
                    self._told_slots.add(member.slot)
                    self._fleet.tell(member.slot, {"kind": "change"})

    def _give_up(self, why: str, now: float) -> None:
        self.trouble = why
        self.on_stop()
        self._end(now + graces.CAUSE)  # in which the ranks say it, too

    # Slots

    def _slots_now(self) -> tuple[Sequence[int], int]:
        """Return all slots that there are, and how many of them may have a process."""
        hosts = None if self._discovery is None else self._discovery.hosts
        most = self._limits.num_proc if hosts is None else self._limits.max_np
        return self._fleet.slots(hosts), most

    def _target_slots(self, now: float) -> Sequence[int]:
        """Return the slots that should have a process: first the slots that have one."""
        slots, most = self._slots_now()
        living = [slot for slot in slots if slot in self.roster.living]
        free = [s for s in slots if s not in self.roster.living and now >= self._slots.free_at(s)]
        return [*living, *free][:most]

    def _look_for_hosts(self, now: float) -> None:
        if self._discovery is None:
            return
        self._discovery.look(now)
        if self._discovery.trouble:
            self._note_rarely(self._discovery.trouble, now)
        if self.roster.generation > 0 and not self.roster.is_finishing:
            self._dismiss(set(self.roster.living) - set(self._target_slots(now)))

    def _dismiss(self, slots: set[int]) -> None:
        """Tell the processes in slots of other hosts to leave, if there are ranks enough here."""
        count = sum(member.slot not in slots for member in self.roster.at(Stage.RUNNING))
        if count >= self.roster.min_np:
            for slot in slots - self._dismissed_slots:
                self._fleet.say(f"slot {slot}: is taken away")
                self._fleet.stop(slot, signal.SIGTERM)
            self._dismissed_slots, self._kept_slots = slots, set()
        elif slots - self._dismissed_slots - self._kept_slots:
            self._kept_slots = slots
            self._fleet.note(
                f"the hosts that are named now have {count} ranks, fewer than --min-np "
                f"({self.roster.min_np}); ranks on other hosts stay until there are more"
            )

    def _note_rarely(self, text: str, now: float) -> None:
        if now >= self._shown_at.get(text, -_REPEAT) + _REPEAT:
            self._shown_at[text] = now
            self._fleet.note(text)

    def _start_due(self, now: float) -> None:
        """Start processes in free slots, once the others do not recover."""
        if self.roster.recovers():
            self._start_at = now + _AFTER_MEETING
        if self.roster.is_finishing or now < self._start_at:
            return
        for slot in self._target_slots(now):
            if slot not in self.roster.living:
                self._start(slot)


def _name(end: End, member: Member) -> str:
    name = "a rank that had not joined" if member.rank is None else f"rank {member.rank}"
    return f"{name} (slot {member.slot}, {end.process})"
