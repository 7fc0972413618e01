"""How soon a job starts: one small real run."""

from __future__ import annotations

import re

import pytest

from benchmarks.harness import launch
from benchmarks.quick import starts


@pytest.mark.job
def test_a_job_tells_what_its_ranks_have() -> None:
    row = starts.row("two", 1, 2, launch.ringarrun)
    assert 0 < row["until_first"] < row["until_end"]
    assert row["private_bytes"] > 5 << 20
    assert (row["sockets"], row["threads"]) == ([0], [1])
    assert re.search(r"\| two .* ms .* MiB +\| 0 +\| 1 ", starts.table_text([row]))
