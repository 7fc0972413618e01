"""The exceptions of ringar; each message names the rank, the collective and the remedy.

Collectives on NumPy arrays, and functions such as `ringar.rank`, raise these. Collectives on
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
    "RankError",
    "RingarError",
    "UnsupportedError",
]


class RingarError(RuntimeError):
    """Report an error of ringar; the base class of its exceptions."""

    ag_pass_through = True
    """Keep AutoGraph from replacing the exception by a StagingError."""


class NotInitializedError(RingarError):
    """Report that ringar was used before `ringar.init` or after `ringar.shutdown`."""


class MismatchError(RingarError, ValueError):
    """Report that the ranks disagree, or that a rank got an invalid argument.

    Every rank of the process set gets the error in the same collective, and can go on.
    """


class DeadlineError(RingarError, TimeoutError):
    """Report that a rank did not arrive in time. The process set cannot be used any longer."""


class PeerLostError(RingarError, ConnectionError):
    """Report that a rank died, left or gave up. The process set cannot be used any longer."""


class RankError(RingarError):
    """Report an error of another rank: its text or traceback, or the signal that killed it."""


class OutOfMemoryError(RingarError, MemoryError):
    """Report that memory for an output, or shared memory, cannot be allocated."""


class UnsupportedError(RingarError, NotImplementedError):
    """Report that this build, machine or TensorFlow does not support the call."""


class DeviceError(RingarError):
    """Report an error of CUDA or NCCL on this rank. The process set cannot be used any longer.

    The other ranks get a `PeerLostError` with the same text.
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


def code_of(error: RingarError) -> int:
    """Return the native library's code for an exception; 2, "unknown" in TensorFlow, for others."""
    return next((code for code, kind in _BY_CODE.items() if type(error) is kind), 2)
