"""When the processes of an elastic job make a world: the roster, without any process."""

from __future__ import annotations

import pytest

from ringar.launchers.elastic.roster import Member, Roster, Slots, Stage


def roster(min_np: int = 2, **stages: Stage) -> Roster:
    """Return a roster with a process in each of slots 0, 1, ... at the stages given."""
    made = Roster(min_np)
    for slot, stage in enumerate(stages.values()):
        made.living[slot] = Member(slot, stage)
    return made


def running(count: int, min_np: int = 2) -> Roster:
    """Return a roster whose first world has met."""
    made = roster(min_np)
    made.living = {slot: Member(slot, Stage.WAITING) for slot in range(count)}
    made.begin(made.next_world())
    for member in made.living.values():
        member.stage = Stage.RUNNING
    return made


def slots(members: list[Member]) -> list[int]:
    return [member.slot for member in members]


def test_the_first_world_waits_for_all() -> None:
    made = roster(a=Stage.WAITING, b=Stage.STARTING, c=Stage.WAITING)
    assert made.next_world() == []
    assert slots(made.awaited()) == [1]
    made.living[1].stage = Stage.WAITING
    assert slots(made.next_world()) == [0, 1, 2]


def test_survivors_keep_their_order_and_come_before_those_that_join() -> None:
    made = running(4)
    made.living[4] = Member(4, Stage.WAITING)
    assert made.remove(0).rank == 0
    assert made.recovers()
    for slot in (3, 1):
        made.living[slot].stage = Stage.WAITING
    assert made.next_world() == []  # slot 2 has not come
    assert slots(made.awaited()) == [2]
    made.living[2].stage = Stage.WAITING
    world = made.next_world()
    assert slots(world) == [1, 2, 3, 4]
    made.begin(world)
    assert [member.rank for member in world] == [0, 1, 2, 3]
    assert made.generation == 2


def test_a_process_that_ends_after_the_next_world_has_begun_breaks_nothing() -> None:
    made = running(3)
    made.living[0].stage = Stage.LEFT
    for slot in (1, 2):
        made.living[slot].stage = Stage.WAITING
    made.begin(made.next_world())
    for slot in (1, 2):
        made.living[slot].stage = Stage.RUNNING
    assert made.remove(0).rank == 0
    assert not made.recovers()


def test_processes_join_only_when_nobody_meets() -> None:
    made = running(2)
    made.living[2] = Member(2, Stage.STARTING)
    assert made.joiners() == []
    made.living[2].stage = Stage.WAITING
    assert slots(made.joiners()) == [2]
    assert made.next_world() == []  # until those in the world have committed
    made.living[0].stage = Stage.WAITING
    assert made.joiners() == []


def test_too_few_ranks_wait_unless_the_training_ends() -> None:
    made = running(2)
    made.remove(1)
    made.living[0].stage = Stage.WAITING
    assert made.is_short()
    assert made.next_world() == []
    assert not made.recovers()  # so that others are started
    made.is_finishing = True
    assert not made.is_short()
    assert slots(made.next_world()) == [0]


def test_a_job_whose_world_has_died_is_over() -> None:
    made = running(2)
    made.living[2] = Member(2, Stage.STARTING)
    made.remove(0)
    assert made.has_members()
    made.remove(1)
    assert not made.has_members()


def test_a_job_that_asks_for_no_world_is_over_with_its_last_process() -> None:
    made = roster()
    for slot in (0, 1):
        made.living[slot] = Member(slot)
        assert made.has_members()
    made.remove(0)
    made.is_finishing = True  # it ended well
    assert made.has_members()
    made.remove(1)
    assert not made.has_members()


def test_a_slot_cools_down_from_its_second_failure_on() -> None:
    places = Slots(10.0, 25.0)
    assert places.free_at(1) == 0.0
    assert [places.note_failure(1, 100.0) for _ in range(4)] == [0.0, 10.0, 20.0, 25.0]
    assert places.free_at(1) == pytest.approx(125.0)
    assert places.note_failure(1, 125.0 + 25.1) == 0.0  # its last process has lived long
    places.note_departure(2, 100.0)
    assert places.free_at(2) == pytest.approx(110.0)
