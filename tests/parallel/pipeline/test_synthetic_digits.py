"""Synthetic gradients learn handwritten digits nearly as well as true ones do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringar
from benchmarks.synthetic.worker import CUTS, net
from ringar.parallel import Grid, Pipelined
from tests.parallel.conftest import OpenGrid
from tests.parallel.pipeline.test_digits import accuracy

pytestmark = [
    pytest.mark.usefixtures("initialized"),
    pytest.mark.ranks(4),
    pytest.mark.slow,
    pytest.mark.deadline(900),
]

SEEDS, POINTS = (1, 2, 3), 2.0
WAYS: dict[str, dict[str, Any]] = {
    "true": {"synthesizer": "true"},
    "conditioned": {"conditioned": True},
    "cut off": {"synthesizer": "zero"},
}


def trained(grid: Grid, seed: int, options: dict[str, Any]) -> float:
    model = Pipelined(
        net(seed), schedule="synthetic", cuts=CUTS[grid.model], grid=grid, ahead=4, **options
    )
    return accuracy(model)


def test_accuracy(open_grid: OpenGrid, size: int) -> None:
    grid = open_grid(size)
    accuracies = {
        way: [trained(grid, seed, options) for seed in SEEDS] for way, options in WAYS.items()
    }
    if ringar.rank() == 0:
        print(accuracies)
    mean = {way: np.mean(values) for way, values in accuracies.items()}
    assert mean["true"] > 97
    assert mean["conditioned"] >= mean["true"] - POINTS, accuracies
    assert mean["cut off"] <= mean["true"] - 3 * POINTS, accuracies
