"""Rank and number of ranks of this process, from its launcher's variables, before ringar runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: The variables of ringarrun, of Open MPI's mpirun, and of MPICH's.
_VARIABLES = (
    ("RINGAR_RANK", "RINGAR_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def place(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and number of ranks for this environment; (0, 1) without a launcher."""
    for rank, size in _VARIABLES:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    return 0, 1


RANK, SIZE = place(os.environ)
