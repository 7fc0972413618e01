"""Horovod's error classes, each derived from the class of ringar that means the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ringar.elastic.state import RanksChangeError
from ringar.errors import NotInitializedError, PeerLostError

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "UninitializedError",
    "get_version_mismatch_message",
]


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class HorovodInternalError(PeerLostError):
    """Report a collective that failed because ranks were lost.

    In a function of `elastic.run` it takes all ranks back to the last commit, in a new world. A
    program may raise it there, too.
    """


class HostsUpdatedInterrupt(RanksChangeError, RuntimeError):
    """Report that ranks join or leave; nothing is lost.

    Args:
        skip_sync: as in Horovod; here the state is always shared, since ranks that are new lack it.

    Attributes:
        leaves: whether this rank leaves the job.
    """

    def __init__(self, skip_sync: bool, leaves: bool = False) -> None:
        super().__init__(leaves)
        self.skip_sync = skip_sync


class UninitializedError(NotInitializedError, ValueError):
    """Report a call before `init`: the ValueError of Horovod."""


def initialized(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function raise Horovod's ValueError before `init`."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except NotInitializedError as error:
            raise UninitializedError(str(error)) from None

    return call


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return the message of `HorovodVersionMismatchError`."""
    return (
        f"expected {name} {version}, with which the package was installed; "
        f"found {name} {installed_version}"
    )


class HorovodVersionMismatchError(ImportError):
    """Report a framework of another version than at installation; ringar never raises it.

    One library of ringar serves all versions of TensorFlow from 2.16 on.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
