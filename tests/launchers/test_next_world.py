"""What the worlds of an elastic job decide: without any process, on hosts that discovery names."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ringar.launchers.elastic import next_world
from ringar.launchers.elastic.discovery import Discovery
from ringar.launchers.elastic.fleet import End
from ringar.launchers.elastic.next_world import Limits, Worlds
from ringar.launchers.elastic.partition import left_out
from ringar.launchers.elastic.roster import Member, Stage
from ringar.launchers.plan.hosts import Host, parse

LOSS = "is lost: the way to its host ended"


class Named(Discovery):
    """Hosts that a test names."""

    def __init__(self, hosts: str) -> None:
        super().__init__(None, None)
        self.name(hosts)

    def name(self, hosts: str) -> None:
        """Name other hosts; "" for none."""
        self.hosts = parse(hosts) if hosts else ()

    def look(self, now: float) -> None:
        """Know the hosts already."""


class Fleet:
    """Note what worlds decide; processes do what a test says."""

    def __init__(self, hosts: str, limits: Limits, discovery: Discovery | None = None) -> None:
        self.first = parse(hosts)
        self.places: list[tuple[str, int]] = []
        self.notes: list[str] = []
        self.signals: list[tuple[int, int]] = []
        self.losses: list[int] = []
        self.is_over = False
        self.worlds = Worlds(limits, discovery, self)

    def slots(self, hosts: Sequence[Host] | None) -> Sequence[int]:
        """Number the slots of all hosts as they appear."""
        named = self.first if hosts is None else hosts
        places = [(host.name, slot) for host in named for slot in range(host.slots)]
        self.places += [place for place in places if place not in self.places]
        return [self.places.index(place) for place in places]

    def host_of(self, slot: int) -> int:
        """Return a number of the host of a slot."""
        return sum(map(ord, self.places[slot][0]))

    def start(self, slot: int) -> None:
        """Start nothing."""

    def stop(self, slot: int, number: int) -> None:
        """Note a signal."""
        self.signals.append((slot, number))

    def lose(self, slot: int) -> None:
        """Note the loss of a host."""
        self.losses.append(slot)

    def tell(self, slot: int, message: Mapping[str, Any]) -> None:
        """Tell nobody."""

    def open_world(self, generation: int, world: Sequence[Member]) -> None:
        """Let the ranks of a world meet at once."""
        for member in world:
            self.worlds.on_message(member.slot, {"kind": "started"})

    def end(self, when: float) -> None:
        """Note the end."""
        self.is_over = True

    def note(self, text: str) -> None:
        """Note a message."""
        self.notes.append(text)

    def say(self, text: str) -> None:
        """Say nothing."""

    # What processes do

    def enter(self, *slots: int) -> None:
        """Let processes enter the next world."""
        for slot in slots:
            self.worlds.on_message(slot, {"kind": "enter"})

    def end_of(self, slot: int, now: float, *, ending: str = LOSS) -> None:
        """Let a process end, by default with its host."""
        self.worlds.on_end(slot, End("a process", 1, ending, with_host=ending == LOSS), now)

    def living(self) -> list[str]:
        """Return the host of each process."""
        return [self.places[slot][0] for slot in sorted(self.worlds.roster.living)]


def limits(num_proc: int, min_np: int, max_np: int | None = None, timeout: float = 9.0) -> Limits:
    return Limits(num_proc, min_np, max_np or num_proc, None, timeout)


def trained(fleet: Fleet) -> None:
    """Bring all processes into the first world."""
    fleet.worlds.begin(0.0)
    fleet.enter(*fleet.worlds.roster.living)
    fleet.worlds.step(0.0)


@pytest.mark.parametrize("answer", ["", "null", "a"])
def test_an_answer_with_too_few_hosts_takes_none_away(answer: str) -> None:
    """Nothing, a word, and fewer slots than `--min-np`."""
    hosts = Named("a:1,b:1")
    fleet = Fleet("a:1,b:1", limits(2, 2), hosts)
    trained(fleet)
    hosts.name(answer)
    for now in (5.0, 6.0, 7.0):
        fleet.worlds.step(now)
    assert fleet.signals == []
    assert len(fleet.notes) == 1  # not with each look
    assert "fewer than --min-np (2); ranks on other hosts stay" in fleet.notes[0]
    hosts.name("a:1,b:1")
    fleet.worlds.step(8.0)
    assert {slot for slot, _ in fleet.signals} <= {2}  # of a host that is named no more
    assert fleet.worlds.roster.generation == 1


def test_hosts_are_replaced_when_the_new_ones_train() -> None:
    hosts = Named("a:2")
    fleet = Fleet("a:2", limits(2, 2), hosts)
    trained(fleet)
    hosts.name("b:2")
    fleet.worlds.step(5.0)  # starts the others
    assert fleet.living() == ["a", "a", "b", "b"]
    fleet.enter(2, 3)  # apart first, then to join
    fleet.enter(2, 3)
    fleet.worlds.step(6.0)
    assert fleet.signals == []
    fleet.enter(0, 1)  # after their next commit
    fleet.worlds.step(7.0)
    assert [member.slot for member in sorted(fleet.worlds.roster.living.values(), key=rank)] == [
        0, 1, 2, 3,
    ]  # fmt: skip
    fleet.worlds.step(8.0)
    assert fleet.signals == [(0, signal.SIGTERM), (1, signal.SIGTERM)]


def rank(member: Member) -> int:
    return -1 if member.rank is None else member.rank


def test_hosts_that_are_absent_are_replaced_and_tried_again() -> None:
    """Slots of other hosts take the place of those that cannot be used."""
    fleet = Fleet("a:1,b:1,c:1", limits(2, 1))
    fleet.slots(None)
    fleet.worlds.begin(0.0, absentees=[0])
    assert fleet.living() == ["b", "c"]
    fleet.enter(1, 2)
    fleet.worlds.step(0.0)
    fleet.end_of(1, 20.0)
    fleet.enter(2)
    for now in (20.1, 20.2, 22.0):
        fleet.worlds.step(now)
    assert fleet.living() == ["a", "c"]


def test_a_host_that_is_lost_during_the_start_ends_the_job_only_if_too_few_are_left() -> None:
    fleet = Fleet("a:2,b:2", limits(4, 2))
    fleet.worlds.begin(0.0)
    fleet.enter(0, 1)
    fleet.end_of(2, 1.0)
    fleet.end_of(3, 1.0)
    assert not fleet.is_over
    assert fleet.notes[-1].endswith(f"{LOSS}; 2 start without it")
    fleet.worlds.step(1.0)
    assert fleet.worlds.roster.generation == 1
    for ending in (LOSS, "failed with exit code 1"):
        fleet = Fleet("a:1,b:1", limits(2, 2 if ending == LOSS else 1))
        fleet.worlds.begin(0.0)
        fleet.end_of(1, 1.0, ending=ending)
        assert fleet.is_over
        assert fleet.worlds.cause is not None
        assert fleet.worlds.cause.process == "a rank that had not joined (slot 1, a process)"


def test_a_process_that_does_not_come_is_killed_once_and_then_its_host_given_up() -> None:
    fleet = Fleet("a:1,b:1", limits(2, 1))
    trained(fleet)
    fleet.enter(0)
    for tenth in range(250):
        fleet.worlds.step(10.0 + tenth / 10)
    assert fleet.signals == [(1, signal.SIGKILL)]
    assert fleet.notes == ["rank 1 (slot 1) does not come to the next world; killed"]
    assert set(fleet.losses) == {1}
    fleet.end_of(1, 40.0)
    fleet.worlds.step(40.1)
    assert fleet.worlds.roster.generation == 2


def test_trouble_is_told_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Named("a:1")
    fleet = Fleet("a:1", limits(1, 1), hosts)
    monkeypatch.setattr(next_world, "_REPEAT", 60.0)
    for now in range(130):
        hosts.trouble = "it fails" if now % 2 == 0 else ""
        fleet.worlds.step(float(now))
    assert fleet.notes == ["it fails"] * 3


def test_hosts_without_which_all_others_reach_each_other() -> None:
    ranks = {0: 1, 1: 1, 2: 2}
    assert left_out(ranks, []) == set()
    assert left_out(ranks, [(0, 1), (1, 0)]) == {1}  # the later one
    assert left_out(ranks, [(0, 2)]) == {0}  # the one with fewer ranks
    assert left_out(ranks, [(0, 1), (2, 0)]) == {0}  # the one that two cannot reach
    assert left_out(ranks, [(0, 7)]) == set()  # which is not there any more
    halves = [(low, high) for low in range(3) for high in range(3, 7)]
    assert left_out(dict.fromkeys(range(7), 1), halves) == {0, 1, 2}


def fail_to_meet(fleet: Fleet, unreached: Mapping[int, int]) -> None:
    """Let each process enter again from a meeting, and say which rank it could not reach."""
    for slot, rank in unreached.items():
        fleet.worlds.roster.living[slot].stage = Stage.MEETING
        fleet.worlds.on_message(slot, {"kind": "enter", "unreached": [rank]})


def test_ranks_go_on_without_a_host_that_they_cannot_reach() -> None:
    fleet = Fleet("a:2,b:1", limits(3, 2))
    trained(fleet)
    fail_to_meet(fleet, {0: 2, 1: 2, 2: 0})
    for now in (1.0, 1.1, 1.2):
        fleet.worlds.step(now)
    assert fleet.signals == [(2, signal.SIGKILL)]
    assert fleet.notes == ["rank 2 (slot 2) cannot reach all of the 2 ranks that go on; killed"]
    fleet.end_of(2, 1.3, ending="was killed")
    fleet.worlds.step(1.4)
    assert fleet.worlds.roster.generation == 2
    fleet.worlds.step(3.0)
    assert fleet.living() == ["a", "a"]  # the slot cools down
    fleet.worlds.step(14.0)
    assert fleet.living() == ["a", "a", "b"]


def test_too_few_ranks_that_reach_each_other_try_again_and_end_in_time() -> None:
    fleet = Fleet("a:2,b:1", limits(3, 3, timeout=60.0))
    trained(fleet)
    tries = 0
    for now in range(200):
        if not fleet.worlds.roster.at(Stage.WAITING):
            tries += 1
            fail_to_meet(fleet, {0: 2, 1: 2, 2: 0})
        fleet.worlds.step(float(now))
    assert tries in range(8, 14)
    assert (fleet.signals, fleet.is_over) == ([], True)
    assert len(fleet.notes) == 1
    assert "for at least 3 ranks (--min-np); received 2 on such hosts" in fleet.worlds.trouble
