"""Arrays that all ranks of a host can write to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ringar.job import native


def empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
    """Return a NumPy array, without values, that collectives read without copying it.

    The array lies in memory that all ranks of the host share. A collective of 256 KiB or more reads
    an input that lies there in place; fill the array in place, too. `ringar.allreduce` returns such
    arrays itself where it can.

    The array is an ordinary one where there is no room in the pool (`RINGAR_OUTPUT_POOL`), in a job
    of one rank or of several hosts, for less than 256 KiB, and before `ringar.init`. It outlives
    `ringar.shutdown`. After a collective on it has failed because a rank was lost or late, the
    values may change until the job ends.

    Args:
        shape: the dimensions, or the only one.
        dtype: the dtype; default float32.

    Returns:
        A C-contiguous array.

    Examples:
        >>> gradient = ringar.empty((1000, 1000))
        >>> gradient[:] = 1.0
        >>> float(ringar.allreduce(gradient).mean())
        1.0
    """
    return native.empty((shape,) if isinstance(shape, (int, np.integer)) else shape, dtype)
