from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringar.cupy.device import compiler_options
from ringar.cupy.kernels.scan import SOURCE
from ringar.cupy.plan import Shape
from tests.cupy.common import SIZES, standing_in
from tests.standins.cupy_host import Compiled, HostCupy


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The kernels for all sizes, compiled for this processor."""
    shapes = [Shape(h, i, affine) for h in SIZES for i in (4, 8) for affine in (False, True)]
    options = [compiler_options(shape) for shape in shapes]
    return Compiled(tmp_path_factory.mktemp("kernels"), SOURCE, options)


@pytest.fixture
def host(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCupy]:
    """A stand-in for CuPy, which `scan` takes for it."""
    cupy = HostCupy(compiled)
    yield from standing_in(cupy, monkeypatch)
    cupy.check_guards()
