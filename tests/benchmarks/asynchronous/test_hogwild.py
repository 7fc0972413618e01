"""What benchmarks.asynchronous.hogwild makes of rates, and small real runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.asynchronous import hogwild, pytorch
from benchmarks.asynchronous import hogwild_worker as worker
from benchmarks.harness import environments
from benchmarks.peers import gloo

FIGURES = {
    "rates": {
        "one rank": [10.0, 20.0, 10.0],
        "racy": [19.0, 38.0, 10.0],
        "atomic": [16.0, 32.0, 16.0],
        "locked": [4.0, 8.0, 4.0],
    },
    "losses": {name: [0.5, 0.5, 0.5] for name in ("one rank", "racy", "atomic", "locked")},
    "serial": 0.5,
    "wrong": 0,
    "missing": {"PyTorch": "no torch"},
}


def test_targets_compare_turns_of_one_round() -> None:
    two, locked = hogwild.targets(FIGURES)
    assert two.measured == [1.9, 1.6]
    assert locked.measured == [4.75, 4.0]
    assert "no" in two.row()
    assert "yes" in locked.row()
    text = hogwild.text(FIGURES)
    assert "The loss of one process: 0.5000" in text
    assert "PyTorch: not measured (no torch)" in text


def test_examples_can_be_learned() -> None:
    data = worker.make_examples(3000, 200, 10)
    assert all(len(set(rows)) == 10 for rows in data.rows)
    assert set(data.labels) == {-1, 1}
    examples = list(zip(data.rows, data.values, data.labels.tolist(), strict=True))
    weights = worker.serial(examples, 200)
    assert worker.loss_of(weights, data) < 0.85 * worker.loss_of(np.zeros(200), data)


def test_a_turn_adds_figures_and_counts_wrong_losses() -> None:
    figures: hogwild.Outcome = {"rates": {}, "losses": {}, "serial": 0.5, "wrong": 0, "missing": {}}
    hogwild.add_turn(figures, {"rates": {"racy": 9.0}, "losses": {"racy": 0.505}})
    assert figures["wrong"] == 0
    hogwild.add_turn(figures, {"rates": {"racy": 8.0}, "losses": {"racy": 0.6}})
    hogwild.add_turn(figures, {"rates": {"PyTorch": 7.0}, "losses": {"PyTorch": math.nan}})
    assert figures["rates"] == {"racy": [9.0, 8.0], "PyTorch": [7.0]}
    assert figures["wrong"] == 2


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(200)
def test_a_small_run_names_a_peer_that_cannot_be_installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    results_folder: Path,
) -> None:
    def ensure(*_: object) -> Path:
        raise environments.CannotInstallError("no torch here")

    monkeypatch.setattr(environments, "ensure", ensure)
    path = tmp_path / "found"
    options = ["--examples", "2000", "--rounds", "1", "--features", "5000", "--output", str(path)]
    assert hogwild.main(options) == 0
    out = capsys.readouterr().out
    assert "# Hogwild!, 5,000 features, 50 of them in an example" in out
    assert "scikit-learn" in out
    assert "PyTorch: not measured (no torch here)" in out
    report = json.loads(path.with_suffix(".json").read_text())
    assert report["wrong"] == 0
    assert min(min(rates) for rates in report["rates"].values()) > 0
    assert list(results_folder.glob("*.json"))


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(800)
def test_pytorch_learns_from_the_same_examples() -> None:
    job = {"features": 5000, "nonzeros": 50, "examples": 4000}
    try:
        environments.ensure("gloo", gloo.REQUIREMENTS)
    except environments.CannotInstallError as error:
        pytest.skip(f"no PyTorch: {error}")
    (turn,) = pytorch.run_worker(hogwild.PYTORCH_WORKER, job, 1, deadline=100)
    data = worker.make_examples(4000, 5000, 50)
    examples = list(zip(data.rows, data.values, data.labels.tolist(), strict=True))
    expected = worker.loss_of(worker.serial(examples, 5000), data)
    loss, other_loss = turn["losses"].values()
    assert loss == pytest.approx(expected, rel=1e-4)
    assert other_loss == pytest.approx(expected, rel=hogwild.MOST_LOSS - 1)
    assert min(turn["rates"].values()) > 0
