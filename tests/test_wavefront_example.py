"""examples/wavefront.py: two ranks with two layers each get the losses of one process."""

from __future__ import annotations

import re

import numpy as np
import pytest

from examples import wavefront
from tests.plugin import JobResult, run_job
from tests.plugin.jobs import ROOT

SCRIPT = ROOT / "examples" / "wavefront.py"


def results(result: JobResult) -> tuple[np.ndarray, float]:
    """The loss of each epoch, and the accuracy."""
    out = result.check().stdout
    losses = re.findall(r"^epoch \d+: loss ([\d.]+), [\d.]+ s$", out, re.MULTILINE)
    accuracy = re.search(r"that it has not seen: ([\d.]+)", out)
    assert accuracy is not None, result
    return np.array(losses, float), float(accuracy[1])


def test_the_data_are_digits_of_two_parts() -> None:
    (x, y), (test_x, test_y) = wavefront.sequences()
    assert x.shape == (1536, 64, 1)
    assert test_x.shape == (261, 64, 1)
    assert set(y) == set(test_y) == set(range(10))
    assert x.min() == 0
    assert x.max() == 1


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(300)
def test_two_ranks_train_as_one_process() -> None:
    args = ["--epochs", "3"]
    losses, _ = results(run_job(None, SCRIPT, args=args))
    losses_of_two, _ = results(run_job(2, SCRIPT, args=args, launcher_args=["--no-prefix"]))
    assert len(losses) == 3
    np.testing.assert_allclose(losses_of_two, losses, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(300)
def test_it_learns_the_digits() -> None:
    losses, accuracy = results(run_job(2, SCRIPT, launcher_args=["--no-prefix"]))
    assert losses[-1] < losses[0] / 2
    assert accuracy > 0.7


def test_bad_arguments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["wavefront.py", "--units", "0"])
    with pytest.raises(SystemExit):
        wavefront.parse()
    assert "--units must be at least 1" in capsys.readouterr().err
