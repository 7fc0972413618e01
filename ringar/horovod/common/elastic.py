"""Horovod's states of elastic jobs, on those of ringar.

`run_fn` calls a function in each world of an elastic job. A commit keeps the state; when ranks are
lost, the others go back to it in a new world, and ranks that are new get it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ringar import elastic
from ringar.elastic import running
from ringar.elastic.state import RanksChangeError
from ringar.horovod import absent
from ringar.horovod.common import environment, job
from ringar.horovod.common.exceptions import HostsUpdatedInterrupt

__all__ = ["ObjectState", "State", "run_fn"]

Result = TypeVar("Result")

__getattr__ = absent.getter(__name__)


class State(elastic.State):
    """Keep the state of a training: the base of all states.

    A subclass defines `save`, `restore` and `sync`, and `reset` if it has something to renew.

    Args:
        bcast_object: sends an object of rank 0 to all ranks.
        get_rank: returns the rank of this process.
        **objects: the objects that a subclass of ringar's state keeps.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any],
        get_rank: Callable[[], int],
        **objects: Any,
    ) -> None:
        super().__init__(**objects)
        self._bcast_object, self._rank = bcast_object, get_rank

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Register functions to call in each new world, before the state is shared.

        Ranks that join call none of them.
        """
        super().register_reset_callbacks(callbacks)

    def on_reset(self) -> None:
        """Renew what depends on the ranks, in a new world: `reset`, then the callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep a copy of the state, and let ranks join and leave. All ranks call it.

        Raises:
            HostsUpdatedInterrupt: ranks join or leave; the function of `run` passes it on.
            MismatchError: ranks that reduce their gradients have other weights or learning rates.
        """
        super().commit()

    def check_for_changes(self) -> None:
        """Let ranks join and leave, as `check_host_updates` does."""
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Let ranks join and leave. All ranks call it.

        Raises:
            HostsUpdatedInterrupt: ranks join or leave.
        """
        try:
            super().check_for_changes()
        except RanksChangeError as change:
            raise HostsUpdatedInterrupt(False, change.leaves) from None

    def sync(self) -> None:
        """Give all ranks the newest state of any rank. All ranks call it."""
        if type(self).packed is elastic.State.packed:
            raise NotImplementedError(f"{type(self).__name__} defines no sync()")
        super().sync()

    def reset(self) -> None:
        """Renew what depends on the ranks; nothing here."""


class ObjectState(State, elastic.ObjectState):
    """Keep Python objects, which are attributes of the state.

    Args:
        bcast_object: sends an object of rank 0 to all ranks.
        get_rank: returns the rank of this process.
        **kwargs: the attributes, and their values at the beginning.
    """

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank, **kwargs)


class _InJob(elastic.State):
    """Let ringar's loop drive a state of Horovod, whose `reset` is not ringar's."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state

    def sync(self) -> None:
        self._state.sync()

    def reset(self) -> None:
        environment.publish(os.environ)
        job.renew()
        self._state.on_reset()
        self._state.keep_again()

    def require_same(self) -> None:
        self._state.require_same()

    def restore(self) -> None:
        self._state.restore()

    def end(self) -> None:
        self._state.end()


def run_fn(func: Callable[..., Result], reset: Callable[[], object] | None = None) -> Any:
    """Return a function that calls `func` in each world, until it returns.

    Args:
        func: takes the state first.
        reset: no effect: ringar leaves a world and enters the next one itself.
    """
    del reset

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Result:
        def train() -> Result:
            try:
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                state.keep()  # nothing is lost, not even what was not committed
                raise

        return running.keep_running(_InJob(state), train)

    return wrapper
