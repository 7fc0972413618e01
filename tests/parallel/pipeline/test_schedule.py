"""The order of work of each module, as plain data."""

from __future__ import annotations

import pytest

from ringar.parallel.pipeline.schedule import Action, schedule

pytestmark = [pytest.mark.ranks(1)]


def letters(actions: list[Action]) -> str:
    return "".join(action.value[0] for action in actions)


def test_staleness() -> None:
    of = {
        name: [schedule(name, k, 4, 3).staleness for k in range(4)]
        for name in ("delayed", "decoupled", "microbatch")
    }
    assert of == {"delayed": [3, 2, 1, 0], "decoupled": [6, 4, 2, 0], "microbatch": [0, 0, 0, 0]}


def test_one_forward_one_backward() -> None:
    steps = [letters(schedule("microbatch", k, 4, 6).step(6)) for k in range(4)]
    assert steps == ["ffffbfbfbbbb", "fffbfbfbfbbb", "ffbfbfbfbfbb", "fbfbfbfbfbfb"]


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("modules", [1, 2, 5])
def test_no_more_parts_are_kept_than_modules_follow(modules: int, parts: int) -> None:
    for k in range(modules):
        stored = maximum = 0
        actions = schedule("microbatch", k, modules, parts).step(parts)
        for action in actions:
            stored += 1 if action is Action.FORWARD else -1
            maximum = max(maximum, stored)
            assert stored >= 0
        assert stored == 0
        assert len(actions) == 2 * parts
        assert maximum == min(parts, modules - k)


def test_unknown_schedules() -> None:
    with pytest.raises(ValueError, match='`schedule` must be one of "delayed", "decoupled", "mic'):
        schedule("lazy", 0, 2)
