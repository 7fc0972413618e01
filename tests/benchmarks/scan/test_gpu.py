"""benchmarks.scan_gpu without a GPU: its settings, its mathematics, its table, what it says."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.series import Series
from benchmarks.scan import gpu as scan_gpu
from benchmarks.scan import plans as scan_plans
from benchmarks.scan import rnn as scan_rnn
from benchmarks.scan.gpu import Setting
from benchmarks.scan.rnn import Backward, Weights
from ringar.cupy import device
from ringar.cupy.plan import Plan, choose

pytestmark = pytest.mark.ranks(1)


def serial_scan(matrices: Any, vector: Any, *, adjoint: bool) -> Any:
    assert adjoint
    out = [vector]
    for matrix in matrices[::-1]:
        out.append(np.einsum("bij,bi->bj", matrix, out[-1]))
    return np.stack(out[::-1])


def test_settings_are_the_papers() -> None:
    grid = scan_gpu.settings(30_000)
    assert len(grid) == len(set(grid)) == 15
    assert {Setting(10, 16), Setting(30_000, 16), Setting(1000, 2), Setting(1000, 256)} < {*grid}
    assert scan_gpu.settings(30) == [Setting(10, 16), Setting(30, 16)]


def test_the_backward_pass_is_that_of_the_forward_pass() -> None:
    rng = np.random.default_rng(0)
    weights = Weights(*(rng.uniform(-1, 1, shape) for shape in ((4, 4), (4, 2), (4,))))
    x, gradient = rng.standard_normal((6, 3, 2)), rng.standard_normal((3, 4))

    def loss() -> float:
        return float((scan_rnn.forward(np, weights, x)[-1] * gradient).sum())

    h = scan_rnn.forward(np, weights, x)
    backward = Backward(np, serial_scan, lambda h, w: (1 - h * h) * w)
    gradients = backward(weights, x, h, gradient)
    for name in ("recurrent", "inputs", "bias"):
        array = getattr(weights, name)
        expected = np.empty_like(array)
        for place in np.ndindex(array.shape):
            value, losses = array[place], []
            for change in (1e-6, -1e-6):
                array[place] = value + change
                losses.append(loss())
            array[place] = value
            expected[place] = (losses[0] - losses[1]) / 2e-6
        np.testing.assert_allclose(getattr(gradients, name), expected, rtol=1e-6, atol=1e-8)
    states = backward.states(weights, h, gradient)
    assert scan_rnn.count_wrong(np, states, scan_rnn.serial(weights.recurrent, h, gradient)) == 0
    states[2, 1, 3] += 1
    states[4, 0, 0] = np.nan
    assert scan_rnn.count_wrong(np, states, scan_rnn.serial(weights.recurrent, h, gradient)) == 2


def test_the_table() -> None:
    times = {"ringar_backward": Series([[1e-4, 3e-4], [2e-4]]), "cudnn_backward": Series([[4e-3]])}
    row = scan_gpu.row(Setting(1000, 16), times, 0, 132)
    del times["cudnn_backward"]
    row_of_ringar = scan_gpu.row(Setting(10, 16), times, 2, 132)
    text = scan_gpu.rows_text([row, row_of_ringar])
    assert "| 200 us (200 us, 200 us) " in text
    assert "| 20 " in text
    assert row_of_ringar["widths"] == []
    assert "serial" in text


def test_the_plans_of_a_scan() -> None:
    for scan in scan_plans.scans():
        candidates = scan_plans.plans(scan.steps)
        assert candidates[0] == Plan((), scan.steps)
        assert choose(scan.steps, scan.batch, scan.units, scan.itemsize, 132) in candidates
    plans = [
        {"widths": widths, "seconds": seconds, "is_chosen": widths == [16]}
        for widths, seconds in (([], 5e-4), ([32], 1e-4), ([16], 2e-4))
    ]
    text = scan_plans.summary([{**scan_plans.Scan(20, 4, 1000, 16)._asdict(), "plans": plans}])
    assert re.search(r"\| 500 +\| 100 +\| 200 +\| 32 +\| 16 +\| 2.00 ", text)
    assert "chosen / fastest: 2.000, at most 2.00" in text


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.load.cache_clear()
    assert scan_gpu.main(["--rounds", "1", "--most-steps", "10"]) == 2
    assert scan_plans.main([]) == 2
    assert capsys.readouterr().err.count("pip install cupy-cuda12x nvidia-nccl-cu12") == 2
    device.load.cache_clear()


def test_bad_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scan_gpu.main(["--rounds", "many"])
    assert "--rounds" in capsys.readouterr().err
