"""The library that stands in for the CUDA driver and NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.jobs import ROOT
from tests.standins.gpu_calls import Library
from tests.standins.gpu_library import build


@pytest.fixture(scope="session")
def path() -> Path:
    return build(ROOT / "build" / "standins")


@pytest.fixture
def gpu(path: Path) -> Iterator[Library]:
    """The library; a test that has provoked misuses forgets them."""
    library = Library(path)
    library.standin_forget()
    library.standin_timeout(20)
    yield library
    assert library.misuse() == ""
    assert library.open() == ""
