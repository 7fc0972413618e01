"""The ranks of a job of MPI that live, where MPI lets a job outlive ranks (ULFM).

`mpirun --with-ft ulfm` of Open MPI 5 does not end a job of which a rank dies (User-Level Failure
Mitigation, Bland et al. 2013). With RINGAR_ELASTIC=1 the ranks that live make a communicator of
themselves:

    a rank notices a loss    it revokes the communicators, and all operations on them fail, on all
                             ranks, whomever they wait for
    each rank that lives     leaves the world, and comes to a barrier of all of its ranks. It fails
                             when a rank is dead that has not come; all that live revoke and shrink
    a further loss           in between: once more from the beginning

No rank can join. A rank that ends, in whatever way, has to be a failed one for MPI, or the others
would wait for it in vain: it ends by SIGKILL. The barrier lets the others shrink after its death:
MPI's agreement on who lives can deadlock (Open MPI 5.0.8, issue 13915). So all of it has a
deadline; beyond, the job has to begin again from its last commit on disk.
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
_own: MPI.Intracomm | None = None  # the last duplicate of it
_is_over = False  # whether the next start needs a smaller one
_has_shrunk = False


def world(mpi: ModuleType, deadline: float) -> MPI.Intracomm:
    """Return the communicator of all ranks that live. Collective after `leave`.

    Args:
        mpi: mpi4py's module.
        deadline: seconds for the ranks that live to find each other.

    Raises:
        RankError: they have not, in that time.
    """
    global _world, _is_over, _has_shrunk
    if _world is None:
        _world = mpi.COMM_WORLD
    if _is_over:
        before = _world
        communicators: list[MPI.Intracomm] = []
        if (
            not _ends_within(deadline, lambda: communicators.append(_left_of(mpi, before)))
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


def own(communicator: MPI.Intracomm) -> MPI.Intracomm:
    """Return ringar's own communicator, which a loss during the start revokes like the world's."""
    global _own
    _own = communicator
    return communicator


@contextlib.contextmanager
def part(communicator: Some) -> Iterator[Some]:
    """Free a communicator of some ranks after use.

    If a loss ends the use, ranks that have not seen it still wait there for this one: it is
    revoked in place of that.
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
        for communicator in filter(None, (_world, _own)):
            communicator.Revoke()
        raise errors.PeerLostError(
            f"expected all ranks to start together, but one is lost: {error}"
        ) from error


def _is_loss(mpi: ModuleType, error: MPI.Exception) -> bool:
    lost = (
        mpi.ERR_PROC_FAILED,
        mpi.ERR_PROC_FAILED_PENDING,
        mpi.ERR_REVOKED,
        mpi.ERR_IN_STATUS,  # of calls that look after several messages
        mpi.ERR_OTHER,  # in place of the first, where a rank dies in the middle of a collective
    )
    return error.Get_error_class() in lost


def _left_of(mpi: ModuleType, whole: MPI.Intracomm) -> MPI.Intracomm:
    """Return `whole` once all of its ranks are here; if one is lost, what is left of it."""
    try:
        whole.Barrier()
    except mpi.Exception as error:
        if not _is_loss(mpi, error):
            raise
        whole.Revoke()
        survivors = cast("MPI.Intracomm", whole.Shrink())
        _log.info("%d of %d ranks are left", survivors.Get_size(), whole.Get_size())
        return survivors
    return whole


def are_left() -> bool:
    """Return whether ranks were lost. MPI_Finalize may then wait for ever."""
    return _has_shrunk


def _ends_within(seconds: float, call: Callable[[], object]) -> bool:
    """Return whether a call ends in time. MPI's have no deadline; a thread can be left behind."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
