"""The arithmetic of reaches against Keras' shapes and against every tap, counted one by one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from ringar.parallel.partitioned.reach import Reach, Window
from ringar.sharding.planes import Interval, Plane, deal

WINDOWS = [
    Window(taps, stride, dilation, padding)
    for taps, stride, dilation, padding in itertools.product(
        (1, 2, 3, 5), (1, 2, 3), (1, 2, 3), ("same", "valid")
    )
    if stride == 1 or dilation == 1
]
EXTENTS = (1, 2, 5, 8, 13)


def grid(rows: int, columns: int, part: int = 0) -> Any:
    return SimpleNamespace(tiles=(rows, columns), model=rows * columns, part=part)


def taps(window: Window, extent: int, output: int) -> list[int]:
    """The rows that a row of output reads, by TensorFlow's definition of padding."""
    front = 0
    if window.padding == "same":
        rows = -(-extent // window.stride)
        front = max((rows - 1) * window.stride + window.reach - extent, 0) // 2
    first = output * window.stride - front
    return [first + tap * window.dilation for tap in range(window.taps)]


def test_rows_are_dealt_out_as_numpy_does() -> None:
    for extent, parts in itertools.product(range(1, 12), range(1, 6)):
        expected = np.array_split(np.arange(extent), parts)
        for bounds, rows in zip(deal(extent, parts), expected, strict=True):
            assert list(range(*bounds)) == list(rows)


@pytest.mark.parametrize("extent", EXTENTS)
def test_sizes_are_those_of_keras(extent: int) -> None:
    for window in WINDOWS:
        layer = keras.layers.Conv2D(
            1, (window.taps, 1), (window.stride, 1), window.padding,
            dilation_rate=(window.dilation, 1),
        )  # fmt: skip
        try:
            expected = layer.compute_output_shape((1, extent, 1, 1))[1]
        except ValueError:  # nothing is left
            expected = 0
        assert window.outputs(extent) == expected, window


@pytest.mark.parametrize("extent", EXTENTS)
def test_needs_are_from_the_first_tap_to_the_last(extent: int) -> None:
    for window, parts in itertools.product(WINDOWS, (1, 2, 3, 4)):
        plane = Plane(extent, 1, grid(parts, 1))
        reach = Reach.of(plane, window, Window(1))
        if not (plane.is_cut and reach.result.is_cut):
            continue
        for part in range(parts):
            outputs = reach.result.tile(part).rows
            reads = [taps(window, extent, o) for o in range(*outputs)]
            read = [row for span in reads for row in span]
            assert reach.reads(part).rows == Interval(min(read), max(read) + 1)
            needs = reach.needs(part).rows
            (top, bottom), sides = reach.padding(part)
            assert needs == Interval(max(min(read), 0), min(max(read), extent - 1) + 1)
            assert (top, bottom) == (max(0, -min(read)), max(0, max(read) + 1 - extent))
            assert sides == (0, 0)
            inside = [sum(0 <= row < extent for row in span) for span in reads]
            assert window.taps_within(outputs, extent) == inside


def test_a_pixel_is_sent_once_to_each_rank_that_needs_it_and_to_no_other() -> None:
    plane = Plane(11, 9, grid(2, 3))
    reach = Reach.of(plane, Window(5, 1, 1, "same"), Window(3, 2, 1, "valid"))
    for receiver in range(6):
        count = np.zeros((11, 9), int)
        for sender in range(6):
            box = reach.message(sender, receiver)
            count[box.rows.slice, box.columns.slice] += 1
        needs = reach.needs(receiver)
        expected = np.zeros_like(count)
        expected[needs.rows.slice, needs.columns.slice] = 1
        np.testing.assert_array_equal(count, expected)
    total = sum(reach.pixels_sent(part) for part in range(6))
    of_others = (reach.needs(part).area - reach.message(part, part).area for part in range(6))
    assert total == sum(of_others)


def test_strips_of_a_convolution_send_its_reach() -> None:
    """The formula of docs/partitioned.md: (k - 1) / 2 rows to each neighbor."""
    plane = Plane(32, 20, grid(4, 1))
    reach = Reach.of(plane, Window(5, padding="same"), Window(5, padding="same"))
    assert [reach.pixels_sent(part) for part in range(4)] == [40, 80, 80, 40]
