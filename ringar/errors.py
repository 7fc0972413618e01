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
    """Base class of all errors of ringar."""

    #: Asks AutoGraph to leave the exception as it is; it replaces others by a StagingError.
    ag_pass_through = True


class NotInitializedError(RingarError):
    """ringar was used before `ringar.init` or after `ringar.shutdown`."""


class MismatchError(RingarError, ValueError):
    """The ranks disagree on what to do, or one of them was given an argument it cannot use.

    Every rank of the process set gets it, in the same collective, and can go on afterwards.
    """


class DeadlineError(RingarError, TimeoutError):
    """A rank did not take part in time. The process set cannot be used any longer."""


class PeerLostError(RingarError, ConnectionError):
    """A rank died, left or gave up. The process set cannot be used any longer."""


class OutOfMemoryError(RingarError, MemoryError):
    """Memory for an output or for the shared arena could not be had."""


class UnsupportedError(RingarError, NotImplementedError):
    """This build, machine or TensorFlow cannot do what was asked."""


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
    """The exception for a code of the native library."""
    return _BY_CODE.get(code, RingarError)(message)
