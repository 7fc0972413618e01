"""What benchmarks.pipeline makes of reports, its picture, and one small real run."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.pipeline import __main__ as pipeline
from benchmarks.pipeline import plot as pipeline_plot
from benchmarks.pipeline import report
from benchmarks.pipeline import worker as pipeline_worker
from benchmarks.pipeline.report import Measured
from tests.plugin import run_job

CHOSEN = report.plans(2)
LOSSES = [2.3, 2.2, 2.1]


def rank(seconds: float, memory: int = 5, events: Any = (), begin: float = 100.0) -> Any:
    end = begin + 10 * seconds
    return {
        "seconds": seconds, "begin": begin, "end": end, "memory": memory, "bytes": 1000.0,
        "losses": LOSSES, "events": list(events),
        "shares": pipeline_worker.shares(list(events), begin, end),
    }  # fmt: skip


def event(kind: str, batch: int, begin: float, end: float) -> dict[str, Any]:
    return {"what": kind, "batch": batch, "begin": begin, "end": end}


def steps(step: float, delay: int, begin: float = 100.0, count: int = 10) -> list[Any]:
    """Forward, backward of a batch before, and a wait, each a third of a step."""
    events = []
    for i in range(count):
        at = begin + i * step
        events += [
            event("forward", i, at, at + step / 3),
            event("wait", i - delay, at + step / 3, at + 2 * step / 3),
            event("backward", i - delay, at + 2 * step / 3, at + step),
        ]
    return events


def measured() -> Measured:
    """Two rounds, the second twice as slow, in which delayed gains 1.5 and decoupled 2."""
    turns: dict[str, list[Any]] = {"one": [], "delayed": [], "decoupled": []}
    for slow in (1.0, 2.0):
        turns["one"].append([rank(3.0 * slow)])
        for name, seconds, delay in (("delayed", 2.0, 1), ("decoupled", 1.5, 2)):
            first = rank(0.9 * seconds * slow, 7, steps(seconds * slow, delay))
            second = rank(seconds * slow, 6, steps(seconds * slow, 0, 101.0), 101.0)
            turns[name].append([first, second])
    references = {"one": LOSSES, "delayed": LOSSES, "decoupled": LOSSES}
    return Measured(turns, references, ["block1_0"])


def test_a_row_compares_each_round_with_itself() -> None:
    row = report.rows(measured(), CHOSEN, batch=60)["delayed"]
    assert (row["seconds"], row["min"], row["max"]) == (3.0, 2.0, 4.0)
    assert (row["times"], row["times_min"], row["times_max"]) == (1.5, 1.5, 1.5)
    assert (row["images"], row["memory"], row["bytes"]) == (20.0, [7, 6], [1000.0, 1000.0])
    assert [row["wait"][1], row["forward"][1]] == pytest.approx([1 / 3, 1 / 3])
    first = row["timeline"][1][0]
    assert first == event("forward", 0, 0.0, 1.333333), "since both ranks are in timed steps"


def test_shares_are_of_what_lies_inside() -> None:
    events = [event("wait", 0, 0.0, 2.0), event("forward", 0, 2.0, 4.0), event("wait", 1, 4.0, 9.0)]
    assert pipeline_worker.shares(events, 1.0, 5.0) == {"wait": 0.5, "forward": 0.5}
    assert pipeline_worker.shares([], 0.0, 1.0) == {}


def test_a_window_is_from_the_end_of_a_step_to_the_end_of_another() -> None:
    calls: list[str] = []
    window = pipeline_worker.Window(2, 5, lambda: calls.append("a"), lambda: calls.append("b"))
    for step in range(5):
        window.note(step)
        assert calls == ["", "a", "a", "a", "ab"][step : step + 1] or "".join(calls) in (
            "",
            "a",
            "ab",
        )
    assert calls == ["a", "b"]
    assert window.seconds == pytest.approx((window.end - window.begin) / 3)


def test_targets_are_of_two_modules() -> None:
    table = report.rows(measured(), CHOSEN, batch=60)
    targets = report.targets(table, 2)
    assert [target.measured for target in targets] == [[1.5], [2.0]]
    assert all("yes" in target.row() for target in targets)
    assert all("not measured" in target.row() for target in report.targets({}, 2))
    assert report.targets(table, 3) == []
    assert "1.50x at most; published: delayed 1.37x, decoupled 1.85x" in report.published_text(2)
    assert "2.00x" in report.published_text(4)


def test_losses_of_another_update_rule_are_counted() -> None:
    measurements = measured()
    assert pipeline.wrong_losses(measurements) == 0
    measurements.references["decoupled"] = [2.3, 2.2, 2.2]
    assert pipeline.wrong_losses(measurements) == 4, "of two ranks in two rounds"
    measurements.turns["one"][1][0]["losses"] = [2.3, math.nan, 2.1]
    assert pipeline.wrong_losses(measurements) == 5
    assert pipeline.told_apart({"one": [2.3, 2.2], "delayed": [2.3, 2.21]})
    assert not pipeline.told_apart({"one": LOSSES, "delayed": [2.3, 2.2001, 2.1]})


def test_lateness_of_each_module() -> None:
    assert pipeline.staleness(3) == {
        "one": [0, 0, 0], "delayed": [2, 1, 0], "decoupled": [4, 2, 0],
    }  # fmt: skip


def test_the_reference_without_delay_is_keras() -> None:
    x, y = pipeline_worker.data(4)
    batches = list(zip(x, y, strict=True))[:3]
    model = pipeline_worker.residual(1, 2)
    weights = model.get_weights()
    losses = {}
    for name, delays in (("none", [0, 0]), ("two", [2, 0])):
        model.set_weights(weights)
        cuts = ["block1_0"]
        losses[name] = pipeline_worker.reference_losses(model, batches, cuts, delays)
    model.set_weights(weights)
    model.compile(pipeline_worker.optimizer(), pipeline_worker.loss())
    trained = []
    for batch in batches:
        model.reset_metrics()  # older versions of Keras return a mean over all batches so far
        trained.append(model.train_on_batch(*batch))
    np.testing.assert_allclose(trained, losses["none"], rtol=1e-5)
    assert losses["none"][0] == losses["two"][0]
    assert pipeline.told_apart(losses)


def test_the_table() -> None:
    text = report.rows_text(report.rows(measured(), CHOSEN, batch=60))
    assert "33%, 33%" in text
    assert "1.50x (1.50 to 1.50)" in text


@pytest.mark.slow
def test_the_picture(tmp_path: Path) -> None:
    table = report.rows(measured(), CHOSEN, batch=60)
    pipeline_plot.draw({"rows": list(table.values())}, str(tmp_path / "pipeline.png"))
    assert (tmp_path / "pipeline.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="expected measurements of modules"):
        pipeline_plot.draw({"rows": [table["one"]]}, str(tmp_path / "none.png"))


def test_the_picture_follows_a_batch_from_its_begin_to_its_end() -> None:
    ranks = [steps(2.0, 1, 0.0), steps(2.0, 0, 1.0)]
    begin = pipeline_plot.begin_of_view(ranks, 8.0)
    assert begin == 6.0, "a forward pass; the view is in the middle"
    views = pipeline_plot.inside(ranks, begin, begin + 8.0)
    assert min(span["batch"] for span in views[0]) == 0
    batch = pipeline_plot.followed(views)
    passes = [(span["what"], module) for module, events in enumerate(views) for span in events
              if span["batch"] == batch and span["what"] != "wait"]  # fmt: skip
    assert sorted(passes) == [("backward", 0), ("backward", 1), ("forward", 0), ("forward", 1)]


def test_options_that_cannot_be() -> None:
    for words in (["--ranks", "1"], ["--batch", "9"], ["--only", "one,none"], ["--cuts", "a,b"]):
        with pytest.raises(SystemExit):
            pipeline.parse(words)
    options, chosen = pipeline.parse(["--only", "delayed,one", "--cuts", "block1_0"])
    assert (list(chosen), options.ranks) == (["one", "delayed"], 2)


@pytest.mark.job
@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    output = tmp_path / "pipeline"
    smallest = ["--blocks", "1", "--width", "4", "--batch", "8", "--rounds", "1", "--steps", "4",
                "--cuts", "block1_0", "--only", "one,decoupled"]  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.pipeline", *smallest, "--output", str(output)]
    job = run_job(None, command, deadline=110).check()
    assert "Cut after block1_0" in job.stdout
    data = json.loads(output.with_suffix(".json").read_text())
    assert [row["plan"] for row in data["rows"]] == ["one", "decoupled"]
    # Forward and backward of four batches in each module, and what crosses the cut.
    for events in data["rows"][1]["timeline"]:
        whats = [span["what"] for span in events]
        assert (whats.count("forward"), whats.count("backward")) == (4, 4)
    assert min(data["rows"][1]["bytes"]) >= 8 * 16 * 16 * 8 * 4
