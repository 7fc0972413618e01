"""ringar.cupy.scan without a GPU: arguments, and the kernels on this processor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ringar.cupy import device, plan, scan
from ringar.cupy.checks import check
from ringar.cupy.device import KernelLauncher
from ringar.cupy.plan import Shape
from ringar.cupy.products import ProductLauncher
from ringar.cupy.scan import execute
from ringar.errors import UnsupportedError
from tests.cupy.common import SIZES, TOLERANCE, arrays, compare, error, serial, standing_in
from tests.cupy.sanitized import layouts
from tests.plugin import fast_if
from tests.plugin.jobs import ROOT
from tests.standins.cupy_host import Array, HostCupy

pytestmark = pytest.mark.ranks(1)

FAST_SIZES = {(1, 4), (3, 8), (16, 4), (20, 8), (33, 4), (64, 4)}

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


# Arguments.

GOOD: dict[str, Any] = {
    "matrices": np.zeros((3, 2, 4, 4)), "vector": np.zeros((2, 4)), "addends": None,
    "adjoint": False, "levels": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "value", "kind", "message"),
    [
        ("matrices", [[1.0]], TypeError, "a numpy.ndarray. Received: .* of type list"),
        ("vector", None, TypeError, "a numpy.ndarray. Received: .* of type NoneType"),
        ("matrices", np.zeros((3, 2, 4, 4), int), TypeError, "float32 or float64. .*int64"),
        ("vector", np.zeros((2, 4), np.float32), TypeError, "be float64, as matrices. .*float32"),
        ("addends", np.zeros((3, 2, 4), np.float32), TypeError, "float64, as matrices. .*float32"),
        ("matrices", np.zeros((3, 4, 4)), ValueError, r"\[n, B, H, H\]. Received: .*\(3, 4, 4\)"),
        ("matrices", np.zeros((3, 2, 4, 5)), ValueError, r"\[n, B, H, H\]. Received: .*4, 5\)"),
        ("matrices", np.zeros((3, 2, 0, 0)), ValueError, "H >= 1. Received: shape"),
        ("vector", np.zeros((4, 2)), ValueError, r"shape \(2, 4\).* Received: shape \(4, 2\)"),
        ("addends", np.zeros((4, 2, 4)), ValueError, r"shape \(3, 2, 4\).* Received: .*4, 2, 4"),
        ("adjoint", 1, TypeError, "True or False. Received: adjoint=1"),
        ("levels", 1.5, TypeError, "a whole number. Received: levels=1.5"),
        ("levels", True, TypeError, "a whole number. Received: levels=True"),
        ("levels", -1, ValueError, "from 0. Received: levels=-1"),
    ],
)
def test_bad_arguments(argument: str, value: Any, kind: type[Exception], message: str) -> None:
    check(np.ndarray, **GOOD)
    with pytest.raises(kind, match=rf"`{argument}` must .*{message}"):
        check(np.ndarray, **{**GOOD, argument: value})


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.load.cache_clear()
    with pytest.raises(ImportError, match=r"pip install cupy-cuda12x nvidia-nccl-cu12"):
        scan(None, None)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for cupy in standing_in(HostCupy(devices=0), monkeypatch):
        with pytest.raises(UnsupportedError, match=r"expected a CUDA GPU .*ringar\.parallel\.scan"):
            scan(cupy.empty((1, 1, 1, 1), float), cupy.empty((1, 1), float))


def test_ringar_does_without_cupy() -> None:
    code = "import sys, ringar, ringar.cupy; sys.exit('cupy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# The kernels on this processor: a stand-in, see tests/standins/cuda_host.h.


@needs_compiler
@pytest.mark.parametrize(
    ("size", "itemsize"),
    [fast_if((size, i) in FAST_SIZES, size, i) for size in SIZES for i in (4, 8)],
)
def test_kernels(host: HostCupy, size: int, itemsize: int) -> None:
    number = 0
    for affine in (False, True):
        shape = Shape(size, itemsize, affine)
        launcher = KernelLauncher(host, shape)
        cases = [(1, 1), (2, 16), (9, 5), (33, 2), (50, 1)]
        for steps, batch in cases + ([(40, 16), (127, 5)] if size <= 20 else []):
            operands = arrays(steps, batch, size, itemsize, affine)
            for levels in range(steps.bit_length() + 1):
                for adjoint in (False, True):
                    host.order = number % 3
                    scan_plan = plan.plan(steps, levels, (1, 2, 5)[number // 2 % 3])
                    compare(launcher, scan_plan, shape, operands, adjoint)
                    number += 1


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("per_round", [1, 2, 5])
@pytest.mark.parametrize("size", [2, 20])
def test_kernels_with_every_number_of_steps(host: HostCupy, size: int, per_round: int) -> None:
    for steps in range(1, 131, 1 if size == 2 else 5):
        shape = Shape(size, 4 + 4 * (steps % 2), steps % 4 < 2)
        launcher = KernelLauncher(host, shape)
        operands = arrays(steps, 3, size, shape.itemsize, shape.affine)
        for levels in range(steps.bit_length() + 1):
            host.order = levels % 3
            scan_plan = plan.plan(steps, levels, per_round)
            compare(launcher, scan_plan, shape, operands, adjoint=(steps // 4 + levels) % 2 == 0)


def sanitized(*fault: str) -> subprocess.CompletedProcess[str]:
    """Run the kernels of each layout, or a fault, under sanitizers, which come before Python."""
    query = ["g++", "-print-file-name=libasan.so"]
    library = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(library):
        pytest.skip("no AddressSanitizer")
    environ = {**os.environ, "LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", "tests.cupy.sanitized", *fault]
    return subprocess.run(
        command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
    )


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(1600)
@needs_compiler
def test_kernels_of_each_layout_under_sanitizers() -> None:
    done = sanitized()
    assert done.returncode == 0, done.stderr
    assert f"{len(layouts())} layouts agree with NumPy" in done.stdout


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(1600)
@needs_compiler
@pytest.mark.parametrize(
    ("right", "fault", "complaint"),
    [
        ("a[k * PITCH + i] *", "a[k * PITCH + i + 4 * RINGAR_CHAIN_REALS] *", "use-after-poison"),
        ("nodes[number * SQUARE", "nodes[(number + 1) * SQUARE", "heap-buffer-overflow"),
        ("Quad*>(a + k * PITCH + i)", "Quad*>(a + k * PITCH + i + 1)", "misaligned address"),
    ],
)
def test_sanitizers_find_faults(right: str, fault: str, complaint: str) -> None:
    done = sanitized(right, fault)
    assert done.returncode != 0
    assert complaint in done.stderr


@needs_compiler
@pytest.mark.parametrize(("steps", "size", "itemsize"), [(1000, 20, 4), (1000, 3, 8), (333, 33, 4)])
def test_kernels_with_many_steps(host: HostCupy, steps: int, size: int, itemsize: int) -> None:
    operands = arrays(steps, 2, size, itemsize, affine=True)
    shape = Shape(size, itemsize, affine=True)
    for levels, per_round in ((0, 5), (3, 5), (5, 5), (8, 2), (99, 3)):
        scan_plan = plan.plan(steps, levels, per_round)
        compare(KernelLauncher(host, shape), scan_plan, shape, operands, adjoint=True)


@pytest.mark.parametrize("non_finite", [np.nan, np.inf])
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("launcher", [pytest.param("kernels", marks=needs_compiler), "products"])
def test_bad_values_stay_where_they_belong(
    request: pytest.FixtureRequest, launcher: str, adjoint: bool, non_finite: float
) -> None:
    steps, shape = 37, Shape(5, 4, affine=True)
    matrix_launcher: Any = ProductLauncher(np)
    if launcher == "kernels":
        matrix_launcher = KernelLauncher(request.getfixturevalue("host"), shape)
    for step in (0, 5, 7, 8, 20, 35, 36):
        matrices, vector, addends = arrays(steps, 2, 5, 4, affine=True)
        clean = serial(matrices, vector, addends, adjoint=adjoint)
        matrices[step, 1, 2, 3] = non_finite
        addends[step, 1, 4] = non_finite
        for levels in range(7):
            scan_plan = plan.plan(steps, levels, per_round=1 + levels % 3)
            with np.errstate(invalid="ignore"):
                out = execute(
                    scan_plan, shape, matrix_launcher, matrices, vector, addends, adjoint=adjoint
                )
            reached = slice(None, step + 1) if adjoint else slice(step + 1, None)
            assert not np.isfinite(out[reached, 1]).all(-1).any(), (step, levels)
            expected = clean.copy()
            expected[reached, 1] = out[reached, 1] = 0.0
            np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_launches(host: HostCupy) -> None:
    """At most two a round and one more, in which Jacobians are read as what they are."""
    operands = arrays(2000, 2, 3, 4, affine=False)
    result = scan(*operands, adjoint=True, levels=8)
    assert error(result, serial(*operands, adjoint=True), True) < TOLERANCE[4]
    assert len(plan.plan(2000, 8).rounds) == 2
    assert host.launched == ["up_transposed", "up_plain", "chain_plain", "chain_plain",
                             "chain_transposed"]  # fmt: skip


@needs_compiler
def test_scan_with_a_stand_in_for_cupy(host: HostCupy) -> None:
    for levels in (None, 0, 3, 50):
        matrices, vector, addends = arrays(40, 3, 8, 4, affine=True)
        turned = np.swapaxes(np.ascontiguousarray(np.swapaxes(matrices, 2, 3)), 2, 3)
        assert not turned.flags.c_contiguous
        result = scan(turned.view(Array), vector, addends, adjoint=True, levels=levels)
        assert error(result, serial(matrices, vector, addends, adjoint=True), True) < TOLERANCE[4]
        assert result.dtype == np.float32


@needs_compiler
def test_nothing_to_do(host: HostCupy) -> None:
    matrices, vector, _ = arrays(1, 3, 8, 8, affine=False)
    for adjoint in (False, True):
        np.testing.assert_array_equal(scan(matrices[:0], vector, adjoint=adjoint), vector[None])
    assert scan(matrices[:, :0], vector[:0]).shape == (2, 0, 8)
    assert not host.launched


@needs_compiler
def test_arrays_on_different_gpus(host: HostCupy) -> None:
    matrices, vector, _ = arrays(2, 3, 8, 8, affine=False)
    vector.device_id = 1
    with pytest.raises(ValueError, match=r"`vector` must be on the GPU of matrices, 0.* on 1"):
        scan(matrices, vector)


# Large matrices, as products of NumPy's in place of CuPy's.


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("adjoint", [False, True])
def test_large_matrices(affine: bool, adjoint: bool) -> None:
    for steps, batch, size in ((1, 1, 65), (37, 2, 70), (130, 2, 3)):
        operands = arrays(steps, batch, size, 8, affine)
        for levels in range(steps.bit_length() + 1):
            for per_round in (1, 2, 5):
                scan_plan = plan.plan(steps, levels, per_round)
                compare(ProductLauncher(np), scan_plan, Shape(size, 8, affine), operands, adjoint)


def test_scan_takes_large_matrices_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for cupy in standing_in(HostCupy(), monkeypatch):
        operands = arrays(20, 2, 66, 4, affine=True)
        result = scan(*operands, adjoint=True)
        assert error(result, serial(*operands, adjoint=True), True) < TOLERANCE[4]
        assert not cupy.launched
