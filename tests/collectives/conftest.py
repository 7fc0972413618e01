"""All tests here have ringar running, on every rank."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _ringar(initialized: None) -> None:
    pass


@pytest.fixture(params=["numpy", "eager", "graph", "compiled"])
def mode(request: pytest.FixtureRequest) -> str:
    """The four ways to call a collective; see common.run."""
    return str(request.param)
