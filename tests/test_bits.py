"""examples/bits.py: going back by a scan trains as Keras does."""

from __future__ import annotations

import re

import numpy as np
import pytest

from examples import bits
from tests.plugin import JobResult, run_job
from tests.plugin.jobs import ROOT

SCRIPT = ROOT / "examples" / "bits.py"


def curves(result: JobResult) -> tuple[np.ndarray, float]:
    """Loss by scan and loss by Keras, a row per printed step, and the greatest difference."""
    out = result.check().stdout
    assert "[1]" not in out, "only rank 0 prints"
    rows = re.findall(r"\| +\d+ \| +([\d.]+) \| +([\d.]+) \| +[\d.e+-]+ \|", out)
    greatest = re.search(r"greatest difference of \d+ steps: ([\d.e+-]+)", out)
    assert greatest is not None, result
    assert re.search(r"a step: [\d.]+ ms by scan, [\d.]+ ms by Keras", out), result
    return np.array(rows, float), float(greatest[1])


def test_bits_are_as_likely_as_their_class_says() -> None:
    x, y = bits.bits(4000, 50)
    assert x.shape == (4000, 50, 1)
    assert x.dtype == np.float32
    assert set(np.unique(x)) == {0, 1}
    assert set(y) == set(range(10))
    for c in range(10):
        assert x[y == c].mean() == pytest.approx(0.05 + 0.1 * c, abs=0.02)
    again, other = bits.bits(4000, 50), bits.bits(4000, 50, seed=1)
    assert (again[0] == x).all()
    assert (other[0] != x).any()


@pytest.mark.slow
@pytest.mark.job
def test_both_curves_are_the_same_on_one_and_on_two_ranks() -> None:
    args = ["--length", "100", "--steps", "40"]
    curve, difference = curves(run_job(None, SCRIPT, args=args))
    curve_of_two, difference_of_two = curves(run_job(2, SCRIPT, args=args))
    assert len(curve) == 20
    assert max(difference, difference_of_two) < 1e-4
    np.testing.assert_allclose(curve_of_two, curve, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.job
def test_the_loss_falls() -> None:
    args = ["--length", "100", "--steps", "150", "--learning-rate", "3e-3"]
    losses, _ = curves(run_job(None, SCRIPT, args=args))
    assert (losses[-5:].mean(axis=0) < losses[:3].mean(axis=0) - 0.3).all()


def test_bad_arguments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bits.py", "--steps", "0"])
    with pytest.raises(SystemExit):
        bits.parse()
    assert "must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(300)
def test_a_thousand_steps_tell_classes_apart() -> None:
    args = ["--steps", "1000"]
    losses, _ = curves(run_job(None, SCRIPT, args=args, deadline=280))
    # Rounding has long taken the curves apart; where they lead to is the same.
    assert (losses[-6:].mean(axis=0) < 1.7).all()
