"""The exceptions of ringar: what the outside did wrong, with who, where, and what to do.

Collectives on NumPy arrays, and `ringar.rank` and its like, raise these. Collectives on
TensorFlow tensors run inside TensorFlow, which raises its own classes with the same messages:
`InvalidArgumentError` for a mismatch, `AbortedError` for a lost peer, `DeadlineExceededError`
and `FailedPreconditionError`.
"""

from __future__ import annotations

__all__ = [
    "DeadlineError",
    "DeviceError",
    "MismatchError",
    "NotInitializedError",
    "OutOfMemoryError",
    "PeerLostError",
    "RingarError",
    "UnsupportedError",
]


class RingarError(RuntimeError):
    """Report an error of ringar: the base class of all."""

    ag_pass_through = True
    """Ask AutoGraph to leave the exception as it is; it replaces others by a StagingError."""


class NotInitializedError(RingarError):
    """Report that ringar was used before `ringar.init` or after `ringar.shutdown`."""


class MismatchError(RingarError, ValueError):
    """Report that the ranks disagree, or that one was given an argument it cannot use.

    Every rank of the process set gets it, in the same collective, and can go on afterwards.
    """


class DeadlineError(RingarError, TimeoutError):
    """Report that a rank did not take part in time. The process set cannot be used any longer."""


class PeerLostError(RingarError, ConnectionError):
    """Report that a rank died, left or gave up. The process set cannot be used any longer."""


class OutOfMemoryError(RingarError, MemoryError):
    """Report that there is no memory for an output or for the memory that ranks share."""


class UnsupportedError(RingarError, NotImplementedError):
    """Report that this build, machine or TensorFlow cannot do what was asked."""


class DeviceError(RingarError):
    """CUDA or NCCL has reported an error on this rank. The process set cannot be used any longer.

    The other ranks get a `PeerLostError` with its text.
    """


# The numbers of ringar_code in tf_ops/include/ringar.h.
_BY_CODE: dict[int, type[RingarError]] = {
    3: MismatchError,
    4: DeadlineError,
    8: OutOfMemoryError,
    9: NotInitializedError,
    10: PeerLostError,
    12: UnsupportedError,
    13: DeviceError,
}


def from_code(code: int, message: str) -> RingarError:
    """Return the exception for a code of the native library."""
    return _BY_CODE.get(code, RingarError)(message)
