"""ringar.job.timeline: one row per rank, valid at any moment, merged by the launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringar.job import timeline
from tests.plugin import JobResult, fast_if, run_job

pytestmark = pytest.mark.job

JOB = """
    import json, sys, time
    import numpy as np
    import ringar
    ringar.init()
    if ringar.rank() == 1:
        time.sleep(0.3)
    ringar.allreduce(np.ones(1 << 20, np.float32), name="large")
    ringar.grouped_allreduce([np.ones((2, 3), np.float32)] * 3, name="bucket")
    part = f"{sys.argv[1]}.rank{ringar.rank()}"
    assert len(json.load(open(part))) > 3, "not valid JSON while it is being written"
    ringar.barrier()
"""


def run(folder: Path, ranks: int, source: str, *options: str) -> JobResult:
    return run_job(ranks, source, args=[str(folder / "t.json")], launcher_args=options)


def recorded(folder: Path, ranks: int, source: str) -> list[dict[str, Any]]:
    path = folder / "t.json"
    run(folder, ranks, source, "--timeline-filename", str(path)).check()
    assert not list(folder.glob("t.json.rank*"))
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return recorded(tmp_path_factory.mktemp("timeline"), 2, JOB)


def spans(events: list[dict], rank: int) -> list[dict]:
    return [e for e in events if e["ph"] == "X" and e["pid"] == rank and e["tid"] == 0]


@pytest.mark.parametrize("ranks", [fast_if(False, 1), 2])
def test_launcher_merges_the_ranks(ranks: int, request: Any, tmp_path: Path) -> None:
    events = request.getfixturevalue("of_two") if ranks == 2 else recorded(tmp_path, ranks, JOB)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {f"rank {r}" for r in range(ranks)}
    for rank in range(ranks):
        large, bucket = (
            next(e for e in spans(events, rank) if e["name"] == f'allreduce "{name}"')
            for name in ("large", "bucket")
        )
        assert large["args"]["bytes"] == 4 << 20
        assert bucket["args"]["tensors"] == 3
        assert bucket["args"]["members"] == ["[2,3]"] * 3
        assert large["ts"] + large["dur"] <= bucket["ts"]
    assert min(e["ts"] for e in events if "ts" in e) == 0


def test_spans_of_a_row_nest_and_the_queue_is_apart(tmp_path: Path) -> None:
    source = """
        import tensorflow as tf
        import ringar
        ringar.init()
        long = tf.ones([1 << 20])
        tf.function(lambda: [ringar.allreduce(long, name=f"n{i}") for i in range(4)])()
    """
    events = recorded(tmp_path, 2, source)
    for rank in range(2):
        inside = [float("inf")]
        for e in sorted(spans(events, rank), key=lambda e: (e["ts"], -e["dur"])):
            while inside[-1] <= e["ts"]:
                inside.pop()
            assert e["ts"] + e["dur"] <= inside[-1] + 0.01, e
            inside.append(e["ts"] + e["dur"])
        queue = [e for e in events if e["pid"] == rank and e.get("cat") == "queue"]
        starts = {e["id2"]["local"]: e["ts"] for e in queue if e["ph"] == "b"}
        ends = {e["id2"]["local"]: e["ts"] for e in queue if e["ph"] == "e"}
        assert starts.keys() == ends.keys()
        assert len(starts) >= 4
        assert all(starts[i] <= ends[i] for i in starts)


def test_the_late_rank_is_named(of_two: list[dict[str, Any]]) -> None:
    waits = [e for e in spans(of_two, 0) if e["name"] == "wait for rank 1"]
    assert max(e["dur"] for e in waits) > 0.2e6
    large = next(e for e in spans(of_two, 0) if e["name"] == 'allreduce "large"')
    assert large["args"]["waiting_us"] > 0.2e6
    # Both ranks leave the collective together, on a clock of their own host.
    other = next(e for e in spans(of_two, 1) if e["name"] == 'allreduce "large"')
    assert abs(large["ts"] + large["dur"] - other["ts"] - other["dur"]) < 0.1e6


def test_messages_are_shown_with_their_wait(tmp_path: Path) -> None:
    source = """
        import time
        import tensorflow as tf
        import ringar
        ringar.init()
        spec = tf.TensorSpec([None, 5])
        if ringar.rank() == 0:
            time.sleep(0.3)
            ringar.send(tf.ones([20, 5]), 1, name="maps")
            tf.function(lambda: ringar.send(tf.ones([1, 5]), 1))()
        else:
            ringar.recv(spec, 0, name="maps")
            tf.function(lambda: ringar.recv(spec, 0))()
    """
    events = [e for e in recorded(tmp_path, 2, source) if e.get("cat") == "message"]
    names = [
        ['send "maps" to rank 1', "send to rank 1"],
        ['recv "maps" from rank 0', "recv from rank 0"],
    ]
    for rank in range(2):
        starts = [e for e in events if e["pid"] == rank and e["ph"] == "b"]
        ends = [e for e in events if e["pid"] == rank and e["ph"] == "e"]
        assert [e["name"] for e in starts] == names[rank] == [e["name"] for e in ends]
        assert [e["args"]["bytes"] for e in starts] == [400, 20]
        assert all(b["ts"] <= e["ts"] for b, e in zip(starts, ends, strict=True))
        assert (starts[0]["args"]["waiting_us"] > 0.2e6) == (rank == 1)


def test_start_and_stop_from_the_program(tmp_path: Path) -> None:
    source = """
        import json, os, sys
        import numpy as np
        import ringar
        ringar.init()
        ringar.allreduce(np.ones(3, np.float32), name="before")
        descriptors = os.listdir("/proc/self/fd")
        ringar.start_timeline(sys.argv[1])
        ringar.allreduce(np.ones(3, np.float32), name="within")
        ringar.stop_timeline(sys.argv[1])
        assert os.listdir("/proc/self/fd") == descriptors
        ringar.allreduce(np.ones(3, np.float32), name="after")
        names = [e["name"] for e in json.load(open(sys.argv[1]))]
        assert names.count('allreduce "within"') == ringar.size(), names
        assert 'allreduce "before"' not in names and 'allreduce "after"' not in names
    """
    run(tmp_path, 2, source).check()


def test_unwritable_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    started = ["--timeline-filename", "/no/such/folder/t.json"]
    done = run(tmp_path, 2, "print('started')\n", *started).check(2)
    assert "--timeline-filename" in done.stderr
    assert "started" not in done.stdout


def test_merge_without_parts_makes_nothing(tmp_path: Path) -> None:
    assert timeline.merge(tmp_path / "t.json") == 0
    assert not (tmp_path / "t.json").exists()
