"""The times of the kernels of a sparse layer."""

from __future__ import annotations

import math

import pytest

from benchmarks.sparse import kernels
from benchmarks.sparse.report import Measured, kernels_text


def test_each_kernel_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UNITS": 64, "CONNECTIONS": 4, "BATCHES": (1, 3), "REPEATS": 1}.items():
        monkeypatch.setattr(kernels, name, value)
    rows = kernels.rows()
    assert [row["batch"] for row in rows] == [1, 3]
    assert all(row["nonzeros"] >= kernels.UNITS for row in rows), "no neuron is without inputs"
    for row in rows:
        for kernel in ("native", "scipy"):
            assert 0 < row[kernel] < math.inf
            assert 0 < row[f"{kernel} gradient"] < math.inf
    assert "SciPy" in kernels_text(Measured(kernels=rows))
