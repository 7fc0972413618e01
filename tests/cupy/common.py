"""What the tests of the scan on GPUs share: data, the serial product, the stand-in for CuPy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ringar.cupy import device
from ringar.cupy.plan import Plan, Shape
from ringar.cupy.scan import execute
from tests.standins.cupy_host import Array, HostCupy

SIZES = (1, 2, 3, 5, 8, 16, 20, 32, 33, 64)
TOLERANCE = {4: 1e-5, 8: 1e-12}


def standing_in(cupy: HostCupy, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCupy]:
    caches = (device.load, device.attributes, device.kernels)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for cache in caches:
        cache.cache_clear()
    yield cupy
    for cache in caches:
        cache.cache_clear()


def serial(matrices: Any, vector: Any, addends: Any, *, adjoint: bool) -> np.ndarray:
    """v_0 … v_n in float64, one product after the other."""
    steps = len(matrices)
    out = np.empty((steps + 1, *vector.shape))
    out[steps if adjoint else 0] = vector
    for i in range(steps):
        t = steps - 1 - i if adjoint else i
        now, then = (t + 1, t) if adjoint else (t, t + 1)
        matrix = matrices[t].astype(np.float64)
        out[then] = np.einsum("bji,bj->bi" if adjoint else "bij,bj->bi", matrix, out[now])
        if addends is not None:
            out[then] += addends[t]
    return out


def arrays(steps: int, batch: int, size: int, itemsize: int, affine: bool) -> tuple[Any, ...]:
    """Matrices whose products neither vanish nor grow much, whatever their number."""
    rng = np.random.default_rng([steps, batch, size])
    dtype = {4: np.float32, 8: np.float64}[itemsize]
    square = rng.standard_normal((steps, batch, size, size))
    matrices = np.linalg.qr(square)[0] * rng.uniform(0.9, 1.1, (steps, batch, size, 1))
    vector = rng.standard_normal((batch, size))
    addends = rng.standard_normal((steps, batch, size)) if affine else None
    operands = (matrices, vector, addends)
    return tuple(
        None if a is None else np.ascontiguousarray(a, dtype).view(Array) for a in operands
    )


def error(result: Any, expected: np.ndarray, adjoint: bool) -> float:
    """The largest error, relative to the largest element of any state that its state comes from."""
    if adjoint:
        result, expected = result[::-1], expected[::-1]
    scale = np.maximum.accumulate(np.abs(expected).max(-1), axis=0)
    assert np.isfinite(result).all()
    return float((np.abs(result - expected).max(-1) / scale).max())


def compare(
    launcher: Any, scan_plan: Plan, shape: Shape, operands: tuple[Any, ...], adjoint: bool
) -> None:
    result = execute(scan_plan, shape, launcher, *operands, adjoint=adjoint)
    deviation = error(result, serial(*operands, adjoint=adjoint), adjoint)
    assert deviation < TOLERANCE[shape.itemsize], (scan_plan, shape, adjoint, deviation)
