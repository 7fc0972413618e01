"""Collectives in the background of eager code, each with a handle.

A thread runs them one after the other, in the order in which they were started. A collective that
waits for its result runs after all of them, so that ranks need only start collectives in one
order.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from ringar.errors import DeadlineError, PeerLostError
from ringar.horovod.common.exceptions import HorovodInternalError

_LOST = (
    DeadlineError,
    PeerLostError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)
_NAME = "ringar-horovod"  # of the thread
_pending: list[Handle] = []
_in_background: ThreadPoolExecutor | None = None


class Handle:
    """Stand for a collective in the background."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def poll(self) -> bool:
        """Return whether the collective has ended."""
        return self._future.done()

    def synchronize(self) -> Any:
        """Wait for the end, and return the result.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        try:
            return self._future.result()
        except _LOST as error:
            raise HorovodInternalError(str(error)) from error


def poll(handle: Handle) -> bool:
    """Return whether a collective has ended: `synchronize` would not wait."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Wait for a collective, and return its result.

    Raises:
        HorovodInternalError: a rank was lost.
    """
    return handle.synchronize()


def in_background(function: Callable[..., Any]) -> Callable[..., Handle]:
    """Return the `*_async` form of a collective: the same arguments, and a handle at once."""

    @functools.wraps(function)
    def start(*args: Any, **kwargs: Any) -> Handle:
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"{function.__name__}_async expected eager code: in a tf.function TensorFlow runs "
                f"collectives in the background by itself; call {function.__name__}"
            )
        handle = Handle(_executor().submit(function, *args, **kwargs))
        _pending[:] = [started for started in _pending if not started.poll()] + [handle]
        return handle

    start.__name__ = start.__qualname__ = f"{function.__name__}_async"
    start.__doc__ = f"Start `{function.__name__}`, and return a handle for `synchronize`."
    return start


def wait_for_all() -> None:
    """Wait for the collectives in the background; their errors stay with their handles."""
    if threading.current_thread().name.startswith(_NAME):
        return
    while _pending:
        _pending[0]._future.exception()
        del _pending[0]


def _executor() -> ThreadPoolExecutor:
    global _in_background
    if _in_background is None:
        _in_background = ThreadPoolExecutor(1, thread_name_prefix=_NAME)
        atexit.register(_in_background.shutdown)
    return _in_background
