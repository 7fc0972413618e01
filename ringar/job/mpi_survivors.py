"""The surviving ranks of a job of MPI, where MPI lets a job outlive ranks (ULFM).

`mpirun --with-ft ulfm` of Open MPI 5 does not end a job of which a rank dies (User-Level Failure
Mitigation, Bland et al. 2013). With RINGAR_ELASTIC=1 the survivors make a communicator of
themselves:

    a rank notices a loss    it revokes the communicators, and all operations on them fail, on all
                             ranks, whichever rank they wait for
    each survivor            leaves the world, and comes to a barrier of all of its ranks. The
                             barrier fails if a rank died before it; the survivors revoke and shrink
    a further loss           in between: once more from the beginning

No rank can join. A rank that ends, in whatever way, must look like a failed one to MPI, or the
others would wait for it in vain: it ends by SIGKILL. The barrier lets the others shrink only after
its death: MPI's agreement on the survivors can deadlock (Open MPI 5.0.8, issue 13915). So all of it
has a deadline; after that, the job has to begin again from its last commit on disk.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

from ringar import errors
from ringar.job import log, membership

if TYPE_CHECKING:
    from mpi4py import MPI

_log = log.logger(__name__)

Some = TypeVar("Some", bound="MPI.Comm")

_world: MPI.Intracomm | None = None  # of the ranks that lived when it was made
_duplicate: MPI.Intracomm | None = None  # the last duplicate of it
_is_over = False  # whether the next start needs a smaller one
_has_shrunk = False


def world(mpi: ModuleType, deadline: float) -> MPI.Intracomm:
    """Return the communicator of all survivors. Collective after `leave`.

    Args:
        mpi: mpi4py's module.
        deadline: seconds for the survivors to find each other.

    Raises:
        RankError: they have not found each other in that time.
    """
    global _world, _is_over, _has_shrunk
    if _world is None:
        _world = mpi.COMM_WORLD
    if _is_over:
        before = _world
        communicators: list[MPI.Intracomm] = []
        if (
            not _ends_within(deadline, lambda: communicators.append(_survivors_of(mpi, before)))
            or not communicators
        ):
            raise errors.RankError(
                f"expected the ranks that live to find each other within {deadline:.3g} s "
                "(--start-timeout), but MPI has not come to an end: a rank may have ended by "
                "sys.exit, or before the others. Start the job again: with RINGAR_ELASTIC_DIR it "
                "goes on from its last commit"
            )
        _world, _is_over = communicators[0], False
        _has_shrunk |= _world is not before
    return _world


def keep(communicator: MPI.Intracomm) -> MPI.Intracomm:
    """Keep ringar's communicator, which a loss during the start revokes like the world's."""
    global _duplicate
    _duplicate = communicator
    return communicator


@contextlib.contextmanager
def part(communicator: Some) -> Iterator[Some]:
    """Free a communicator of some ranks after use.

    If a loss ends the use, ranks that have not seen it still wait there for this one. The
    communicator is then revoked instead.
    """
    from mpi4py import MPI

    is_over = False
    try:
        yield communicator
    except MPI.Exception as error:
        is_over = membership.is_by_mpi() and _is_loss(MPI, error)
        raise
    finally:
        if is_over:
            communicator.Revoke()
        else:
            communicator.Free()


def leave(communicator: MPI.Intracomm, *, failed: bool) -> None:
    """Leave the world of a communicator; the next start makes a smaller one.

    Args:
        communicator: ringar's own, a duplicate of the world's.
        failed: whether other ranks may wait on it for a rank that is lost.
    """
    global _is_over
    _is_over = membership.is_by_mpi()
    if _is_over and failed:
        communicator.Revoke()


@contextlib.contextmanager
def losses(mpi: ModuleType) -> Iterator[None]:
    """Raise `PeerLostError` in the place of MPI's error where a rank was lost, on all ranks."""
    global _is_over
    try:
        yield
    except mpi.Exception as error:
        if not membership.is_by_mpi() or not _is_loss(mpi, error):
            raise
        _is_over = True
        for communicator in filter(None, (_world, _duplicate)):
            communicator.Revoke()
        raise errors.PeerLostError(
            f"expected all ranks to start together, but one is lost: {error}"
        ) from error


def _is_loss(mpi: ModuleType, error: MPI.Exception) -> bool:
    classes = (
        mpi.ERR_PROC_FAILED,
        mpi.ERR_PROC_FAILED_PENDING,
        mpi.ERR_REVOKED,
        mpi.ERR_IN_STATUS,  # of calls that look after several messages
        mpi.ERR_OTHER,  # in place of the first, where a rank dies in the middle of a collective
    )
    return error.Get_error_class() in classes


def _survivors_of(mpi: ModuleType, communicator: MPI.Intracomm) -> MPI.Intracomm:
    """Return `communicator` once all of its ranks are here; if one is lost, that of the others."""
    try:
        communicator.Barrier()
    except mpi.Exception as error:
        if not _is_loss(mpi, error):
            raise
        communicator.Revoke()
        survivors = cast("MPI.Intracomm", communicator.Shrink())
        _log.info("%d of %d ranks are left", survivors.Get_size(), communicator.Get_size())
        return survivors
    return communicator


def are_left() -> bool:
    """Return whether ranks were lost. MPI_Finalize may then wait for ever."""
    return _has_shrunk


def _ends_within(seconds: float, call: Callable[[], object]) -> bool:
    """Return whether a call ends in time. MPI's have no deadline; a thread can be left behind."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
