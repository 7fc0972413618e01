"""How soon a job starts: one small real run."""

from __future__ import annotations

import pytest

from benchmarks.harness import launch
from benchmarks.quick import starts


@pytest.mark.job
def test_a_job_tells_what_its_ranks_have() -> None:
    title, *times, memory, sockets, threads = starts.row("two", 1, 2, launch.ringarrun)
    assert title == "two"
    assert all(time.endswith("s") for time in times)
    assert int(memory.removesuffix(" MiB")) > 5
    assert (sockets, threads) == (0, 1)
