"""Each kind of cut gives a rank its part, and joins the parts of all ranks again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from ringar.sharding.cut import Cut, PlacedCut, TileCut, cut_of, mark

WHOLE = np.arange(2 * 7 * 6).reshape(2, 7, 6)


def grid(part: int, rows: int = 3, columns: int = 1) -> Any:
    return SimpleNamespace(model=rows * columns, part=part, tiles=(rows, columns))


def places(part: int) -> np.ndarray:
    """Part 1 has nothing."""
    return np.array([[5, 0, 2], [], [1, 3, 4, 6]][part], np.int64)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda part: Cut(2, grid(part)), [(2, 7, 2)] * 3),
        (lambda part: TileCut(1, grid(part)), [(2, 3, 6), (2, 2, 6), (2, 2, 6)]),
        (
            lambda part: TileCut(1, grid(part, 2, 2)),
            [(2, 4, 3), (2, 4, 3), (2, 3, 3), (2, 3, 3)],
        ),
        (lambda part: PlacedCut(1, grid(part), places), [(2, 3, 6), (2, 0, 6), (2, 4, 6)]),
    ],
)
def test_parts_make_the_whole(make: Any, shapes: list[Any]) -> None:
    cuts = [make(part) for part in range(len(shapes))]
    parts = [cut.part(WHOLE) for cut in cuts]
    assert [part.shape for part in parts] == shapes
    np.testing.assert_array_equal(cuts[0].join(parts), WHOLE)
    differ = {axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1}
    assert differ <= set(cuts[0].uneven) <= set(cuts[0].axes)


def test_parts_are_equal() -> None:
    with pytest.raises(ValueError, match="equal division"):
        Cut(1, grid(0)).part(WHOLE)


@pytest.mark.parametrize(
    ("constraint", "cut", "refused"),
    [
        (keras.constraints.MaxNorm(axis=0), Cut(0, grid(0)), True),
        (keras.constraints.UnitNorm(axis=[1, -1]), Cut(2, grid(0)), True),
        (keras.constraints.MaxNorm(axis=2), TileCut(0, grid(0)), False),
        (keras.constraints.MaxNorm(axis=1), TileCut(0, grid(0)), True),
        (keras.constraints.MaxNorm(axis=0), Cut(0, grid(0, 1)), False),
        (keras.constraints.NonNeg(), Cut(0, grid(0)), False),
        (None, Cut(0, grid(0)), False),
    ],
)
def test_norms_over_all_parts(constraint: Any, cut: Cut, refused: bool) -> None:
    layer = keras.layers.Layer()
    variable = layer.add_weight(shape=(3, 4, 6), constraint=constraint)
    if refused:
        with pytest.raises(ValueError, match="must not take norms along the axes"):
            mark(variable, cut)
    else:
        mark(variable, cut)
        assert cut_of(variable) is (cut if cut.grid.model > 1 else None)
