"""Which launches a scan becomes, as plain data."""

from __future__ import annotations

import math

import pytest

from ringar.cupy import plan
from ringar.cupy.plan import Plan, Round, Shape

pytestmark = pytest.mark.ranks(1)


def test_plans() -> None:
    assert plan.plan(1000, 0) == Plan((), 1000)
    assert plan.plan(1000, 4) == Plan((Round(1000, 16),), 63)
    assert plan.plan(1000, 10) == Plan((Round(1000, 32),), 32)
    assert plan.plan(30_000, 9) == Plan((Round(30_000, 32), Round(938, 16)), 59)
    assert plan.plan(1, 7) == Plan((), 1)
    # A level per launch, the tree of the paper.
    assert plan.plan(13, 99, per_round=1).rounds == (Round(13, 2), Round(7, 2), Round(4, 2))


@pytest.mark.parametrize("per_round", [1, 3, 5])
@pytest.mark.parametrize("steps", [*range(1, 70), 1000, 30_000])
def test_what_holds_of_every_plan(steps: int, per_round: int) -> None:
    for levels in range(steps.bit_length() + 3):
        scan_plan = plan.plan(steps, levels, per_round)
        assert len(scan_plan.rounds) <= math.ceil(levels / per_round)
        left = steps
        for r in scan_plan.rounds:
            assert r.nodes == left
            assert r.spans >= 2
            left = r.spans
        assert scan_plan.top == left
        if 2**levels < steps and per_round > 1:
            assert left <= max(math.ceil(steps / 2**levels), 2**per_round)


def test_the_choice() -> None:
    def chosen(steps: int, batch: int, size: int = 20) -> Plan:
        return plan.choose(steps, batch, size, 4, 132)

    assert chosen(1, 1) == Plan((), 1)
    assert not chosen(30, 16).rounds  # a chain is done before a second kernel starts
    assert chosen(1000, 16).rounds
    assert len(chosen(30_000, 1).rounds) == 2
    assert not chosen(1000, 20_000).rounds  # the batch alone fills the GPU
    assert chosen(1000, 2, size=500) == plan.choose(1000, 2, 500, 4, 132)


@pytest.mark.parametrize("itemsize", [4, 8])
def test_shapes(itemsize: int) -> None:
    for size in range(1, plan.MAX_SIZE + 1):
        shape = Shape(size, itemsize, affine=True)
        assert shape.up_threads % shape.up_team == 0
        assert shape.chain_threads % shape.chain_team == 0
        assert max(shape.up_threads, shape.chain_threads) <= 256
        assert shape.chain_shared <= plan.STATIC_SHARED_BYTES
        assert shape.up_shared <= (plan.STATIC_SHARED_BYTES if size <= 52 else 72 * 1024)
        assert shape.up_reals % 4 == shape.chain_reals % 4 == 0  # quads are aligned
