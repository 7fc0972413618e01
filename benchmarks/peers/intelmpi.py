"""Intel MPI's MPI_Allreduce through mpi4py, from the PyPI package impi-rt (x86-64)."""

from __future__ import annotations

from benchmarks.harness.launch import intel_mpi as command  # noqa: F401
from benchmarks.peers.mpi_peer import Peer  # noqa: F401

TITLE = "Intel MPI"
REQUIREMENTS = ("numpy", "mpi4py>=4.1", "impi-rt>=2021.13")
