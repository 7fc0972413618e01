"""Which rank this process is, before ringar can say so: who started it has left it a word."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Rank and number of ranks, as told by ringarrun, Open MPI's mpirun, and that of MPICH.
_VARIABLES = (
    ("RINGAR_RANK", "RINGAR_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def place(environment: Mapping[str, str]) -> tuple[int, int]:
    """Rank and number of ranks of a process with this environment; (0, 1) without a launcher."""
    for rank, size in _VARIABLES:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    return 0, 1


RANK, SIZE = place(os.environ)
