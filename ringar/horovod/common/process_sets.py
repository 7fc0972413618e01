"""Horovod's process sets: sets of ranks, whose order does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from ringar.collectives.agree import together
from ringar.horovod.common.exceptions import initialized
from ringar.job import place
from ringar.job import process_sets as of_ringar

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


def is_iterable(x: object) -> bool:
    """Return whether `iter` takes an object."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


class ProcessSet(of_ringar.ProcessSet):
    """Name a set of ranks that run collectives together.

    Args:
        ranks_or_comm: ranks in any order, or a communicator of mpi4py in a job that MPI has
            started.

    Attributes:
        ranks: the ranks, in ascending order.
        process_set_id: the number of the set; None before `init` or `add_process_set`.
        mpi_comm: the communicator, if the set was made from one.
    """

    def __init__(self, ranks_or_comm: Sequence[int] | MPI.Comm) -> None:
        self.mpi_comm = ranks_or_comm if hasattr(ranks_or_comm, "Get_group") else None
        listed: Any = ranks_or_comm if self.mpi_comm is None else ranks_of(self.mpi_comm)
        ranks: list[Any] = list(listed) if is_iterable(listed) else [None]
        if not all(isinstance(rank, Integral) for rank in ranks):
            raise ValueError(
                "ProcessSet expected a list of ranks or a communicator of mpi4py; "
                f"received {ranks_or_comm!r}"
            )
        super().__init__(sorted(ranks))

    def size(self) -> int | None:  # type: ignore[override]  # None, as in Horovod
        """Return the number of ranks; None before the set is in use."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:  # type: ignore[override]
        """Return the number of this rank in the set; None before the set is in use.

        Raises:
            ValueError: this rank is not a member.
        """
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(f"this rank is no member of {self}")
        return super().rank()

    @initialized
    def included(self) -> bool:
        """Return whether this rank is a member."""
        return super().rank() >= 0

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


def ranks_of(comm: Any) -> list[int]:
    """Return the ranks of the job that are in a communicator of mpi4py."""
    from mpi4py import MPI

    group = comm.Get_group()
    members = range(group.Get_size())
    return [int(rank) for rank in group.Translate_ranks(members, MPI.COMM_WORLD.Get_group())]


class _AllRanks(ProcessSet):
    """Name all ranks of the job; they are known after `init`."""

    def __init__(self) -> None:
        self.mpi_comm = None
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]  # read only
        return of_ringar.global_process_set.ranks

    def size(self) -> int:
        """Return the number of ranks in the job."""
        return initialized(place.size)()

    def rank(self) -> int:
        """Return the number of this rank in the job."""
        return initialized(place.rank)()


global_process_set: ProcessSet = _AllRanks()
"""All ranks of the job."""


def check_new(process_set: ProcessSet, sets: Sequence[ProcessSet] = ()) -> None:
    """Raise ValueError unless a set can be registered.

    Args:
        process_set: the set.
        sets: sets that will be registered before it.
    """
    # Grids of ringar have sets of their own, which a script for Horovod knows nothing of.
    registered = [other for other in of_ringar.in_use() if isinstance(other, ProcessSet)]
    if any(other.ranks == process_set.ranks for other in [global_process_set, *registered, *sets]):
        raise ValueError(f"expected ranks that no process set has yet; received {process_set}")
    of_ringar.check_new(process_set)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set after `init`, and return it. All ranks call it.

    Args:
        process_set: the set, or its ranks.

    Raises:
        ValueError: on all ranks, if on one of them a set of these ranks was added, or a rank is
            outside the job.
        MismatchError: ranks pass different sets.
    """

    def checked() -> list[int]:
        proposal = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        check_new(proposal)
        return proposal.ranks

    initialized(place.size)()
    ranks = together(checked, caller="add_process_set", deed="to name a set of ranks")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(ranks[place.rank()])
    of_ringar.add_process_set(process_set)
    return process_set


def remove_process_set(process_set: of_ringar.ProcessSet) -> bool:
    """Unregister a process set; return whether it was in use. All ranks call it.

    The set of all ranks stays.
    """
    if not process_set.process_set_id:
        return False
    of_ringar.remove_process_set(process_set)
    return True
