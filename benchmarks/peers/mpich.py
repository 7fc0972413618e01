"""MPICH's MPI_Allreduce through mpi4py, from the PyPI package mpich."""

from __future__ import annotations

from benchmarks.harness.launch import mpich as command  # noqa: F401
from benchmarks.peers.mpi_peer import Peer  # noqa: F401

TITLE = "MPICH"
REQUIREMENTS = ("numpy", "mpi4py>=4", "mpich>=5")
