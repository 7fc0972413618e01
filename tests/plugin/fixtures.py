"""What tests ask for by name: ringar, started; and ways to compare ranks without ringar."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.place import RANK, SIZE

# A collective that some rank never joins fails well before the test's own deadline (120 s).
DEADLINE = 60.0
STALL_WARNING = 10.0


def initialize() -> None:
    """Calls `ringar.init()` with the times that suit tests."""
    import ringar

    ringar.init(deadline=DEADLINE, stall_warning=STALL_WARNING, start_timeout=DEADLINE)


def is_initialized() -> bool:
    """Whether ringar is running here; does not import it."""
    return "ringar" in sys.modules and sys.modules["ringar"].is_initialized()


def leave() -> None:
    """Shuts ringar down on this rank alone."""
    import ringar

    ringar.shutdown()


def restart() -> None:
    """Shuts ringar down, as far as it is running, and starts it again: a collective call."""
    leave()
    initialize()


@pytest.fixture(scope="session")
def initialized() -> Iterator[None]:
    """Has ringar running: on all ranks under ringarrun, as a job of one rank in plain pytest."""
    import ringar

    if not ringar.is_initialized():
        initialize()
    yield
    ringar.shutdown()


@pytest.fixture
def rank() -> int:
    """This process' rank."""
    return RANK


@pytest.fixture
def size() -> int:
    """The number of ranks: 1 in plain pytest."""
    return SIZE


@pytest.fixture
def exchange(request: pytest.FixtureRequest) -> Callable[[Any], list[Any]]:
    """A function that returns what every rank passed to it, in rank order, without ringar."""
    hub = getattr(request.config, "ringar_hub", None)
    count = itertools.count()

    def run(value: Any) -> list[Any]:
        if hub is None:
            return [value]
        return list(
            hub.exchange(f"exchange {next(count)} of {request.node.nodeid}", value, optional=True)
        )

    return run


@pytest.fixture
def shared_tmp_path(tmp_path: Path, exchange: Callable[[Any], list[Any]]) -> Path:
    """A folder of this test that is the same on all ranks: rank 0's tmp_path."""
    path: Path = exchange(tmp_path)[0]
    return path
