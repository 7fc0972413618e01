"""The processes of an elastic job, and when they make the next world: plain data, no process.

A *slot* is a place for one process. A process goes through stages:

    STARTING   it imports, or is in its first ringar.init()
    WAITING    it waits for the next world
    MEETING    it has got a world, and waits for its other ranks
    RUNNING    they have met
    LEFT       it will not come back
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field


class Stage(enum.Enum):
    """How far a process has come."""

    STARTING = enum.auto()
    WAITING = enum.auto()
    MEETING = enum.auto()
    RUNNING = enum.auto()
    LEFT = enum.auto()


@dataclass
class Member:
    """One living process: its slot, its stage, the last world that it was in, its rank there."""

    slot: int
    stage: Stage = Stage.STARTING
    world: int = 0
    rank: int | None = None


@dataclass
class Roster:
    """The living processes, by slot, and the number of worlds so far."""

    min_np: int
    living: dict[int, Member] = field(default_factory=dict)
    generation: int = 0
    is_broken: bool = False  # a rank of the last world is gone, and there is no other world yet
    is_finishing: bool = False  # a rank has come to its end: the others need not be `min_np`

    def at(self, *stages: Stage) -> list[Member]:
        """Return the members that are at one of `stages`, by slot."""
        return [self.living[slot] for slot in sorted(self.living) if self._is_at(slot, stages)]

    def _is_at(self, slot: int, stages: Iterable[Stage]) -> bool:
        return self.living[slot].stage in stages

    @property
    def is_meeting_due(self) -> bool:
        """Whether a rank of the last world, or of the first one, waits for the next world."""
        first = self.generation == 0
        return any(first or member.rank is not None for member in self.at(Stage.WAITING))

    def awaited(self) -> list[Member]:
        """Return the members without which there is no next world; they have not come yet."""
        if self.generation == 0:
            return self.at(Stage.STARTING)
        return self.at(Stage.MEETING, Stage.RUNNING)

    def is_short(self) -> bool:
        """Return whether a meeting is due of which all have come, but are too few."""
        return self.is_meeting_due and not self.awaited() and not self._are_enough()

    def _are_enough(self) -> bool:
        return self.is_finishing or len(self.at(Stage.WAITING)) >= self.min_np

    def next_world(self) -> list[Member]:
        """Return the ranks of the next world, in order; empty while it cannot be made.

        Those of the last world come first, in its order: rank 0 has a commit then.
        """
        if not self.is_meeting_due or self.awaited() or not self._are_enough():
            return []
        waiting = self.at(Stage.WAITING)
        old = sorted((m for m in waiting if m.rank is not None), key=lambda m: m.rank or 0)
        return old + [m for m in waiting if m.rank is None]

    def remove(self, slot: int) -> Member:
        """Remove the process of `slot`, which has ended."""
        member = self.living.pop(slot)
        self.is_broken |= member.rank is not None and member.world == self.generation
        return member

    def begin(self, world: list[Member]) -> None:
        """Note that `world` is the next one."""
        self.generation += 1
        self.is_broken = False
        for rank, member in enumerate(world):
            member.rank, member.stage, member.world = rank, Stage.MEETING, self.generation

    def has_met(self) -> bool:
        """Return whether the ranks of the last world train."""
        return bool(self.at(Stage.RUNNING)) and not self.at(Stage.MEETING)

    def recovers(self) -> bool:
        """Return whether ranks are on their way to a world that can be made."""
        on_the_way = self.is_broken or self.is_meeting_due or bool(self.at(Stage.MEETING))
        return self.generation == 0 or (on_the_way and not self.is_short())

    def has_members(self) -> bool:
        """Return whether a process lives that has been in a world, or the first is yet to come."""
        if self.generation == 0:  # a program that asks for no world ends without one
            return bool(self.living) or not self.is_finishing
        return any(m.rank is not None for m in self.living.values())

    def joiners(self) -> list[Member]:
        """Return the members that wait until those in the world let them in."""
        settled = self.generation > 0 and not self.at(Stage.MEETING) and not self.is_meeting_due
        return self.at(Stage.WAITING) if settled else []


@dataclass
class Slots:
    """The places for processes, and since when each may be used again.

    After a failure a slot is free at once. If its next process fails, too, it cools down, for twice
    as long after each further failure: the cause may pass, and each start interrupts the training
    of the others. A process that lives for longer than the longest such time clears the count.
    """

    cool_down: float
    longest: float
    _failures: dict[int, int] = field(default_factory=dict)
    _free_at: dict[int, float] = field(default_factory=dict)

    def note_failure(self, slot: int, now: float) -> float:
        """Note a failure; return the seconds for which the slot cools down."""
        lived_long = now - self._free_at.get(slot, now) > self.longest
        count = self._failures[slot] = 1 if lived_long else self._failures.get(slot, 0) + 1
        seconds = 0.0 if count == 1 else min(self.longest, self.cool_down * 2.0 ** (count - 2))
        self._free_at[slot] = now + seconds
        return seconds

    def note_absence(self, slot: int, now: float) -> None:
        """Note that the host of a slot cannot take part: it cools down, now and when it fails."""
        self._failures[slot] = max(1, self._failures.get(slot, 0))
        self._free_at[slot] = now + self.cool_down

    def note_departure(self, slot: int, now: float) -> None:
        """Note that a process has been told to leave its slot, which cools down."""
        self._free_at[slot] = now + self.cool_down

    def free_at(self, slot: int) -> float:
        """Return when the slot may be used."""
        return self._free_at.get(slot, 0.0)
