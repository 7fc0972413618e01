"""The state of a training that ranks go back to after a loss, and that new ranks get."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.collectives import Max, agree, allgather_object, allreduce, broadcast_object
from ringar.elastic import folder, preemption
from ringar.elastic.comparison import Compared, require_same
from ringar.job import log, membership, place

_log = log.logger(__name__)


class RanksChangeError(Exception):
    """Report that all ranks have committed, and enter another world.

    Attributes:
        leaves: whether this rank leaves the job.
    """

    ag_pass_through = True

    def __init__(self, leaves: bool) -> None:
        super().__init__("ranks join or leave")
        self.leaves = leaves


class State:
    """Keep the state of a training, and share it with the other ranks: the base of all states.

    A subclass defines `save`, `restore`, `packed` and `unpack`. All ranks commit at the same places
    of their programs.
    """

    def __init__(self) -> None:
        self._commits = 0  # the number of the commit that is kept
        self._is_written = True  # the last commit, where there is a folder for it
        self._is_compared_in = -1  # the world in which a commit has compared the ranks
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Register functions to call in each new world, on the ranks that were in another before.

        They renew what depends on the number of ranks: learning rates, functions compiled with
        collectives other than allreduces, shares of data, process sets. The state is restored
        before, and shared afterwards: ranks that join get what the functions have changed in it. A
        rank that joins calls none of them. Their collectives meet those that its script runs
        between `ringar.init` and the training function.

        Args:
            callbacks: functions without arguments.
        """
        self._reset_callbacks += callbacks

    def commit(self) -> None:
        """Keep a copy of the state; let ranks join and leave. Collective.

        Call it at the same places on all ranks. A loss takes all ranks back to the last commit. A
        commit costs a copy of the state in memory and a small allreduce.

        Raises:
            MismatchError: with the first commit in a world, on every rank: ranks that reduce their
                gradients have other weights or learning rates.
        """
        if self._is_compared_in != _world():
            self._is_compared_in = _world()
            self.require_same()
        self.keep()
        self.check_for_changes()

    def keep(self) -> None:
        """Keep a copy of the state, without any communication."""
        self.save()
        self._commits += 1
        if (path := folder.folder()) is not None and place.rank() == 0:
            self._keep_in(path)

    def _keep_in(self, path: Path) -> None:
        """Write the commit; warn where that fails, once until it works again.

        An exception would end rank 0, and then each rank that takes its place.
        """
        try:
            folder.write(path, self._commits, self.layout(), self.packed())
        except OSError as error:
            if self._is_written:
                _log.warning(
                    "cannot write commit %d to %s: %s; the training goes on, and the commit before "
                    "stays there. Make room: a later commit is written again",
                    self._commits, path, error.strerror,
                )  # fmt: skip
            self._is_written = False
        else:
            self._is_written = True

    def check_for_changes(self) -> None:
        """Leave this world for another if a rank waits to join, or is told to leave. Collective.

        What was done since the last commit is lost: `commit` calls this.
        """
        if not membership.is_elastic():
            return
        leaves = preemption.is_requested()
        wishes = np.array([membership.is_change_due(), leaves], np.int32)
        if allreduce(wishes, op=Max, name="elastic/changes").any():
            raise RanksChangeError(leaves)

    def sync(self) -> None:
        """Give all ranks the newest commit of any rank. Collective.

        At the beginning of a training that is the state of rank 0, or the commit in the folder of
        `--elastic-dir`.

        Raises:
            MismatchError: that commit is one of another model or state.
            RingarError: it is damaged, and so is the one before it; or it cannot be read.
        """
        numbers = allgather_object(self._commits, name="elastic/commits")
        if max(numbers) == 0 and (path := folder.folder()) is not None:
            numbers[0] = self._begin(path)
        newest = max(numbers)
        root = numbers.index(newest)
        if newest == 0:
            self.save()
        if newest == 0 or min(numbers) < newest:
            packed = self.packed() if place.rank() == root else None
            packed = broadcast_object(packed, root, name="elastic/state")
            if numbers[place.rank()] < newest or (newest == 0 and place.rank() != root):
                self.unpack(packed)
                self.restore()
        self._commits = max(newest, 1)

    def _begin(self, path: Path) -> int:
        """Take the commit in a folder on rank 0, and return its number; 0 without any."""

        def take() -> int:
            if (commit := folder.read(path, self.layout())) is None:
                return 0
            self._commits, packed = commit
            self.unpack(packed)
            self.restore()
            _log.info("going on from commit %d in %s", self._commits, path)
            return self._commits

        deed = f"to read the commit in {path}"
        return agree.first(take, caller="ringar.elastic.State.sync", deed=deed)

    def end(self) -> None:
        """Remove the commit in the folder of `--elastic-dir`: the training is done."""
        if (path := folder.folder()) is not None and place.rank() == 0:
            folder.remove(path)

    def reset(self) -> None:
        """Call the functions that were registered for a new world, and keep their changes."""
        for callback in self._reset_callbacks:
            callback()
        if self._reset_callbacks:
            self.keep_again()

    def keep_again(self) -> None:
        """Keep the state once more in place of the commit, if there is one, to share it."""
        if self._commits > 0:
            self.keep()

    def require_same(self) -> None:
        """Raise on all ranks if ranks train with other settings or weights. Collective.

        Raises:
            MismatchError: with what differs.
        """
        if membership.is_elastic():
            require_same(self.compared())

    def compared(self) -> Compared:
        """Return the values that must be the same on all ranks; nothing here."""
        return Compared()

    def save(self) -> None:
        """Copy the state, for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the state that `save` has copied."""
        raise NotImplementedError

    def packed(self) -> object:
        """Return the copy that `save` has made, as an object that can be pickled."""
        raise NotImplementedError

    def unpack(self, packed: Any) -> None:
        """Take the copy of another rank in place of this rank's."""
        raise NotImplementedError

    def layout(self) -> Mapping[str, str]:
        """Return names and kinds of the state's values: a commit of another layout is refused."""
        return {}


class ObjectState(State):
    """Keep Python objects, which are attributes of the state.

    Args:
        **objects: the names of the attributes, and their values at the beginning: any objects that
            can be copied and pickled.
    """

    def __init__(self, **objects: object) -> None:
        super().__init__()
        self._names = tuple(objects)
        self._saved: dict[str, object] = {}
        for name, value in objects.items():
            setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the objects

        def __setattr__(self, name: str, value: Any) -> None: ...

    def save(self) -> None:
        """Copy the objects."""
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        """Give the attributes the values that they had in the last commit."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def packed(self) -> object:
        """Return the copies of the objects."""
        return self._saved

    def unpack(self, packed: Any) -> None:
        """Take the copies of another rank."""
        self._saved = packed

    def layout(self) -> Mapping[str, str]:
        """Return the names of the objects."""
        return {f"object {name}": "an object" for name in self._names}


def _world() -> int:
    return int(place.require("ringar.elastic.State").generation)
