from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import ringar

OpenGrid = Callable[[int | tuple[int, int]], ringar.parallel.Grid]


@pytest.fixture
def open_grid(size: int) -> Iterator[OpenGrid]:
    """A function that makes a grid of so many parts, if the ranks can be shared out to them."""
    with ExitStack() as closing:

        def make(parts: int | tuple[int, int]) -> ringar.parallel.Grid:
            if size % (parts if isinstance(parts, int) else math.prod(parts)):
                pytest.skip(f"{parts} parts, {size} ranks")
            grid = ringar.parallel.Grid(model=parts)
            closing.callback(grid.close)
            return grid

        yield make
