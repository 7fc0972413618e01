"""The open files that the launcher hands to a rank, and processes that a rank starts.

A program between launcher and script may close files that it does not know, as Python's
`subprocess` does. A file in memory is then opened again in /proc, through the launcher, which keeps
it. A socket cannot be opened again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ringar.errors import RingarError

#: The process that has started the rank, and keeps its files.
LAUNCHER_VARIABLE = "RINGAR_LAUNCHER_PROCESS"
#: Tells the processes that a rank starts which process the rank is.
RANK_VARIABLE = "RINGAR_RANK_PROCESS"

_IN_MEMORY = "/memfd:ringar"
_SOCKET = "socket:"


def memory(variable: str, environ: Mapping[str, str]) -> int:
    """Return the descriptor of a file in memory, opened again if it has been closed.

    Args:
        variable: the variable that names the descriptor.
        environ: the environment.

    Raises:
        RingarError: the file is closed, and cannot be opened again.
        ValueError: the variable is no number.
    """
    descriptor = _number(variable, environ)
    if _target(f"/proc/self/fd/{descriptor}").startswith(_IN_MEMORY):
        return descriptor
    path = f"/proc/{environ.get(LAUNCHER_VARIABLE, 'self')}/fd/{descriptor}"
    if _target(path).startswith(_IN_MEMORY):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    raise _closed(variable, environ, "the memory that the ranks of a host share")


def socket(variable: str, environ: Mapping[str, str]) -> int:
    """Return the descriptor of a socket.

    Args:
        variable: the variable that names the descriptor.
        environ: the environment.

    Raises:
        RingarError: the socket has been closed.
        ValueError: the variable is no number.
    """
    descriptor = _number(variable, environ)
    if not _target(f"/proc/self/fd/{descriptor}").startswith(_SOCKET):
        raise _closed(variable, environ, "a socket to the launcher or to other ranks")
    return descriptor


def mark_rank() -> None:
    """Tell the processes that this rank starts that they are no ranks."""
    os.environ[RANK_VARIABLE] = str(os.getpid())


def rank_process(environ: Mapping[str, str]) -> int | None:
    """Return the process of the rank that has started this process, directly or through others."""
    process = environ.get(RANK_VARIABLE, "")
    ancestor = os.getpid()
    while process and ancestor > 1:
        ancestor = _parent(ancestor)
        if str(ancestor) == process:
            return ancestor
    return None


def _number(variable: str, environ: Mapping[str, str]) -> int:
    try:
        return int(environ[variable])
    except ValueError:
        received = environ[variable]
        raise ValueError(f"{variable} must be a whole number. Received: {received!r}") from None


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _parent(process: int) -> int:
    try:
        # The name, in brackets, may have blanks.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _closed(variable: str, environ: Mapping[str, str], purpose: str) -> RingarError:
    return RingarError(
        f"rank {environ.get('RINGAR_RANK', '?')} | ringar.init: expected file {environ[variable]} "
        f"({variable}), {purpose}, to be open as ringarrun has opened it; received another file, "
        "or none. A program between ringarrun and the script has closed it, as Python's subprocess "
        "does unless close_fds=False: let it execute the script in its own process (os.execv), or "
        "start it first, and ringarrun from it."
    )
