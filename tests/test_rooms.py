"""The picture of the rooms can be read: no box lies on another one."""

from __future__ import annotations

import itertools
import re

from tests.plugin.jobs import ROOT


def test_no_box_lies_on_another() -> None:
    picture = (ROOT / "docs" / "pictures" / "rooms.svg").read_text()
    sides = r'<rect class="\w+" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"'
    boxes = [tuple(map(int, box)) for box in re.findall(sides, picture)]
    assert len(boxes) > 10
    for (x, y, width, height), (other_x, other_y, _, _) in itertools.combinations(boxes, 2):
        assert abs(x - other_x) >= width or abs(y - other_y) >= height
