"""Plans as data: blocks, chunks, the model of their time, and the choice."""

from __future__ import annotations

import pytest

import ringar
from ringar.research.wavefront import costs, plan
from ringar.research.wavefront.plan import Costs, LayerCost, Line
from tests.research.wavefront import stacks


def costs_of(layers: int, *, start: float = 0.0, step: float = 1.0, message: float = 0.0) -> Costs:
    layer = LayerCost(Line(start, 0.0), Line(step, 0.0))
    return Costs((layer,) * layers, (8,) * layers, Line(message, 0.0))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize(("steps", "chunk"), [(100, 5), (100, 10), (12, 12), (300, 1)])
def test_free_starts_and_messages_give_the_model_of_the_speed(
    workers: int, steps: int, chunk: int
) -> None:
    free = costs_of(12)
    chunks = plan.in_chunks(free, steps, chunk, workers, 1)
    serial = plan.layer_by_layer(steps, 12, workers, 1)
    assert [last - first for first, last in chunks.blocks] == [12 // workers] * workers
    speed = serial.seconds(free, 4) / chunks.seconds(free, 4)
    assert speed == pytest.approx(plan.speedup(steps, chunk, workers))


@pytest.mark.parametrize(
    ("seconds", "ranks", "blocks"),
    [
        ([1, 1, 1, 1], 2, ((0, 2), (2, 4))),
        ([3, 1, 1, 1], 2, ((0, 1), (1, 4))),
        ([1, 1, 1], 2, ((0, 1), (1, 3))),
        ([1, 1, 4, 1], 3, ((0, 2), (2, 3), (3, 4))),
        ([2], 3, ((0, 1), (1, 1), (1, 1))),
    ],
)
def test_blocks_of_which_the_slowest_is_fastest(
    seconds: list[float], ranks: int, blocks: tuple[tuple[int, int], ...]
) -> None:
    assert plan.blocks_of(seconds, ranks) == blocks


def test_chunks_cover_all_steps() -> None:
    chunks = plan.in_chunks(costs_of(2), 11, 4, 2, 1)
    assert chunks.chunks == [(0, 4), (4, 8), (8, 11)]
    assert plan.in_chunks(costs_of(2), 3, 7, 2, 1).chunks == [(0, 3)]
    assert [chunks.owner(layer) for layer in (0, 1)] == [0, 1]


def test_dear_starts_make_long_chunks_and_very_dear_ones_none() -> None:
    chunks = [
        plan.choose(costs_of(4, start=start, message=start), 100, 16, 2, 1).chunk
        for start in (0.0, 0.1, 1.0, 10.0, 1000.0)
    ]
    assert chunks[0] == 1
    assert chunks[:4] == sorted(chunks[:4])
    assert chunks[3] > 10
    assert chunks[4] == 0  # layer by layer


@pytest.mark.parametrize("batch", [1, 16, 64, None])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_chosen_is_expected_to_be_no_slower(ranks: int, batch: int | None) -> None:
    cell = ringar.layers.ScanGRU(8)._cell_kind
    for units in (4, 64, 512):
        nominal = costs.nominal([costs.Shape(cell, units, units)] * 4)
        for steps in (1, 10, 300):
            chosen = plan.choose(nominal, steps, batch, ranks, 2)
            plain = plan.layer_by_layer(steps, 4, ranks, 2)
            for size in (1, 32) if batch is None else (batch,):
                assert chosen.seconds(nominal, size) <= plain.seconds(nominal, size)
            assert units > 4 or steps > 1 or not chosen.is_wavefront


def test_one_layer_and_one_thread_leave_nothing_to_choose() -> None:
    for kinds, threads in (("G", 4), ("GG", 1)):
        cells = stacks.layers(kinds, 1, threads=threads)
        stack = ringar.parallel.Wavefront(cells)
        stack.build((None, 100, 4))
        assert not stack.plan(100, 16).is_wavefront


@pytest.mark.ranks(1, 2)
@pytest.mark.usefixtures("initialized")
def test_measured_costs_are_equal_on_all_ranks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setenv("RINGAR_CALIBRATION", "auto")
    grid = ringar.parallel.Grid(model=size) if size > 1 else None
    cell = ringar.layers.ScanLSTM(8)._cell_kind
    shapes = [costs.Shape(cell, 4, units) for units in (8, 96)]
    stack_costs = costs.of_stack(shapes, grid)
    assert stack_costs.units == (8, 96)
    assert stack_costs.layers[1].step(16) > stack_costs.layers[0].step(16) > 0
    assert all(layer(10, 16) > layer(1, 16) > 0 for layer in stack_costs.layers)
    assert (stack_costs.message(1000) > 0) == (size > 1)
    if grid is not None:
        assert ringar.allgather_object(stack_costs) == [stack_costs] * size
        grid.close()
