"""Overlap with the backward pass: its arithmetic on a made-up step, and one small real run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training import buckets, jobs, overlap
from benchmarks.training import overlap_trace as trace
from tests.plugin import run_job

GRADIENT = "Call/gradient_tape/dense/MatMul/MatMul_1:_MklMatMul"
UPDATE = "Call/optimizer_1/AssignSubVariableOp:AssignSubVariableOp"

OPS = [
    ("Call/dense/Relu:Relu", 1000.0, 2000.0),
    (GRADIENT, 2000.0, 3000.0),
    ("Call/gradient_tape/conv/MatMul:MatMul", 2500.0, 4000.0),
    (UPDATE, 6000.0, 7000.0),
]
STEPS = [(500.0, 8000.0)]


def collective(name: str, submitted: float, begin: float, end: float) -> list[dict[str, Any]]:
    """What the timeline writes for a bucket that waits first and then reduces."""
    row = {"ph": "X", "pid": 0, "tid": 0}
    args = {"bytes": 4000, "tensors": 2, "copying_us": 0.0, "reducing_us": 100.0,
            "waiting_us": end - begin - 100}  # fmt: skip
    title = f'allreduce "{name}"'
    queued = {"pid": 0, "tid": 0, "cat": "queue", "id2": {"local": name},
              "name": f"queued: {title}"}  # fmt: skip
    return [
        {**queued, "ph": "b", "ts": submitted},
        {**queued, "ph": "e", "ts": begin},
        {**row, "ts": begin, "dur": end - begin, "name": title, "args": args},
        {**row, "ts": begin, "dur": end - begin - 100, "name": "wait for rank 1"},
        {**row, "ts": end - 100, "dur": 100.0, "name": "reduce"},
    ]


TIMELINE = [
    {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "rank 0"}},
    *collective("gradients/bucket_0:3", 3000.0, 3500.0, 4500.0),
    *collective("gradients/bucket_1:2-0", 3100.0, 4500.0, 5500.0),
    *collective("something else", 6000.0, 6100.0, 6500.0),
]


def test_operations_belong_to_a_phase() -> None:
    phases = [trace.phase_of(name) for name, *_ in OPS]
    assert phases == ["forward", "backward", "backward", "optimizer"]
    assert trace.phase_of("Call/RingarAllreduce_1:RingarAllreduce") is None
    assert trace.phase_of("Call/my_optimizer/dense/Relu:Relu") == "forward"


def test_time_beside_others_counts_once() -> None:
    assert trace.union([(5, 6), (1, 3), (2, 4)]) == [(1, 4), (5, 6)]
    assert trace.beside((2, 10), [(1, 3), (2, 4), (5, 6), (20, 30)]) == 3
    assert trace.beside((0, 1), []) == 0


def test_table_of_a_made_up_step() -> None:
    transfers = trace.transfers(TIMELINE)
    assert [transfer.name for transfer in transfers] == ["bucket_0:3", "bucket_1:2-0"]
    assert transfers[0].spans == {
        "queued": [(3000.0, 3500.0)],
        "waiting": [(3500.0, 4400.0)],
        "reducing": [(4400.0, 4500.0)],
    }
    first, second, total = trace.rows(STEPS, OPS, transfers)
    assert (first["leaves"], first["queued"], first["waiting"]) == (2.5, 0.5, 0.9)
    assert (first["ms"], first["beside"], first["part"]) == (1.0, 0.5, 0.5)
    assert (second["ms"], second["beside"], second["part"]) == (1.0, 0.0, 0.0)
    assert (total["ms"], total["beside"], total["part"]) == (2.0, 0.5, 0.25)
    assert (total["step"], total["backward_ends"]) == (7.5, 3.5)


def test_table_of_one_rank_has_no_bucket() -> None:
    (total,) = trace.rows(STEPS, OPS, [])
    assert (total["ms"], total["part"]) == (0.0, 0.0)


def test_rows_of_a_trace_do_not_cross() -> None:
    assert trace.lanes([(0, 10), (5, 6), (7, 12), (10, 11)]) == [0, 1, 1, 0]
    events = trace.chrome_trace(STEPS, OPS, [TIMELINE])
    spans = [event for event in events if event["ph"] == "X"]
    assert min(span["ts"] for span in spans) == 0
    rows = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(span["pid"], span["tid"]) for span in spans if span["pid"]} <= rows


def test_gain_compares_rounds_with_themselves() -> None:
    reports = [{"seconds": [[1.0, 5.0, 2.0], [1.5, 5.5, 2.0], [1.0] * 3]},
               {"seconds": [[1.2, 4.0, 1.0], [1.0, 4.0, 2.5], [1.0] * 3]}]  # fmt: skip
    assert overlap.gain(reports)[0] == pytest.approx(0.5)
    assert overlap.step_times(reports)[0]["seconds"] == 2.0


def test_buckets_choose_only_what_wins_clearly() -> None:
    pairs = buckets.candidates([2 << 20, 1 << 30], [64 << 10])
    assert pairs[0] == jobs.DEFAULT
    assert (8 << 20, 64 << 10) in pairs
    assert pairs[-1] == (1 << 30, 1 << 30)
    plans = [(str(i),) for i in range(len(pairs))]
    plans[2] = plans[1]
    seconds = [[1.0, 2.0, 1.0]] * len(pairs)
    report: dict[str, Any] = {
        "plans": [*plans, ()],
        "seconds": [*seconds, [0.9, 1.8, 0.9]],
        "wrong": 0,
    }
    table = buckets.rows("mlp", pairs, report)
    assert table[2]["same_as"] == pairs[1]
    assert table[-1]["bucket"] is None
    assert table[-1]["ratio"] == pytest.approx(0.9)
    assert buckets.choice(table)[0] == jobs.DEFAULT, "no exchange is no candidate"
    report["seconds"][3] = [0.9, 1.9, 1.2]
    assert buckets.choice(buckets.rows("mlp", pairs, report))[0] == jobs.DEFAULT
    report["seconds"][3] = [0.9, 1.9, 0.9]
    assert buckets.choice(buckets.rows("mlp", pairs, report))[0] == pairs[3]


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.deadline(170)
def test_a_small_run_writes_a_trace_and_a_picture(tmp_path: Path) -> None:
    output = tmp_path / "overlap"
    words = ["--model", "mlp", "--rounds", "2", "--steps", "2", "--record", "3"]
    words += ["--output", str(output)]
    command = [sys.executable, "-m", "benchmarks.training.overlap", *words]
    job = run_job(None, command, deadline=150).check()
    assert "beside backward" in job.stdout
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    trace_file = json.loads(output.with_suffix(".json").read_text())
    events = trace_file["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"TensorFlow on rank 0", "rank 0", "rank 1"}
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"steps", "forward", "backward"} <= rows
    bucket = 'allreduce "gradients/bucket_0:3-0"'
    spans = [event for event in events if event["ph"] == "X"]
    assert {span["pid"] for span in spans if span["name"] == bucket} == {0, 1}
    # On one clock: the gradients leave within the step, after an operation of its backward pass.
    steps = [(s["ts"], s["ts"] + s["dur"]) for s in spans if s["name"].startswith("step ")]
    assert len(steps) == 3
    departures = [span["ts"] for span in spans if span["name"] == bucket and span["pid"] == 0]
    operations = [span["ts"] for span in spans if "gradient_tape/" in span["name"]]
    for (begin, end), at in zip(steps, departures, strict=True):
        assert begin < at < end
        assert any(begin < op < at for op in operations)
