"""When the processes of an elastic job make a world: the roster, without any process."""

from __future__ import annotations

import pytest

from ringar.launchers.elastic.roster import Member, Roster, Slots, Stage


def roster(min_np: int = 2, **stages: Stage) -> Roster:
    """Return a roster with a process in each of slots 0, 1, ... at the stages given."""
    members = Roster(min_np)
    for slot, stage in enumerate(stages.values()):
        members.living[slot] = Member(slot, stage)
    return members


def running(count: int, min_np: int = 2) -> Roster:
    """Return a roster whose first world has met."""
    members = roster(min_np)
    members.living = {slot: Member(slot, Stage.WAITING) for slot in range(count)}
    members.begin(members.next_world())
    for member in members.living.values():
        member.stage = Stage.RUNNING
    return members


def slots(members: list[Member]) -> list[int]:
    return [member.slot for member in members]


def test_the_first_world_waits_for_all() -> None:
    members = roster(a=Stage.WAITING, b=Stage.STARTING, c=Stage.WAITING)
    assert members.next_world() == []
    assert slots(members.awaited()) == [1]
    members.living[1].stage = Stage.WAITING
    assert slots(members.next_world()) == [0, 1, 2]


def test_survivors_keep_their_order_and_come_before_those_that_join() -> None:
    members = running(4)
    members.living[4] = Member(4, Stage.WAITING)
    assert members.remove(0).rank == 0
    assert members.recovers()
    for slot in (3, 1):
        members.living[slot].stage = Stage.WAITING
    assert members.next_world() == []  # slot 2 has not come
    assert slots(members.awaited()) == [2]
    members.living[2].stage = Stage.WAITING
    world = members.next_world()
    assert slots(world) == [1, 2, 3, 4]
    members.begin(world)
    assert [member.rank for member in world] == [0, 1, 2, 3]
    assert members.generation == 2


def test_a_process_that_ends_after_the_next_world_has_begun_breaks_nothing() -> None:
    members = running(3)
    members.living[0].stage = Stage.LEFT
    for slot in (1, 2):
        members.living[slot].stage = Stage.WAITING
    members.begin(members.next_world())
    for slot in (1, 2):
        members.living[slot].stage = Stage.RUNNING
    assert members.remove(0).rank == 0
    assert not members.recovers()


def test_processes_join_only_when_nobody_meets() -> None:
    members = running(2)
    members.living[2] = Member(2, Stage.STARTING)
    assert members.joiners() == []
    members.living[2].stage = Stage.WAITING
    assert slots(members.joiners()) == [2]
    assert members.next_world() == []  # until those in the world have committed
    members.living[0].stage = Stage.WAITING
    assert members.joiners() == []


def test_too_few_ranks_wait_unless_the_training_ends() -> None:
    members = running(2)
    members.remove(1)
    members.living[0].stage = Stage.WAITING
    assert members.is_short()
    assert members.next_world() == []
    assert not members.recovers()  # so that others are started
    members.is_finishing = True
    assert not members.is_short()
    assert slots(members.next_world()) == [0]


def test_a_job_whose_world_has_died_is_over() -> None:
    members = running(2)
    members.living[2] = Member(2, Stage.STARTING)
    members.remove(0)
    assert members.has_members()
    members.remove(1)
    assert not members.has_members()


def test_a_job_that_asks_for_no_world_is_over_with_its_last_process() -> None:
    members = roster()
    for slot in (0, 1):
        members.living[slot] = Member(slot)
        assert members.has_members()
    members.remove(0)
    members.is_finishing = True  # it ended well
    assert members.has_members()
    members.remove(1)
    assert not members.has_members()


def test_a_slot_cools_down_from_its_second_failure_on() -> None:
    places = Slots(10.0, 25.0)
    assert places.free_at(1) == 0.0
    assert [places.note_failure(1, 100.0) for _ in range(4)] == [0.0, 10.0, 20.0, 25.0]
    assert places.free_at(1) == pytest.approx(125.0)
    assert places.note_failure(1, 125.0 + 25.1) == 0.0  # its last process has lived long
    places.note_departure(2, 100.0)
    assert places.free_at(2) == pytest.approx(110.0)
