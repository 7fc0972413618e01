"""Find the process of a rank that its signals are for.

A rank may have helpers (worker processes of a `ProcessPoolExecutor`, say) and may run behind a
wrapper (a shell script, say). A signal to stop or to save is for neither: helpers that die first
make the save fail, and a wrapper that dies first takes the time to save away. The recipient is the
process that has loaded ringar's library, nearest to the process that the launcher has started;
before the library is loaded, it is that process itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_LIBRARY = b"/libringar"


def children(members: Iterable[int]) -> dict[int, list[int]]:
    """Return the children of each process among `members`, the living processes of a job."""
    by_parent: dict[int, list[int]] = {}
    for pid in members:
        by_parent.setdefault(_parent(pid), []).append(pid)
    return by_parent


def parents() -> dict[int, int]:
    """Return the parent of each process of this host."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return {pid: _parent(pid) for pid in pids}


def recipient(leader: int, children: Mapping[int, Sequence[int]]) -> int:
    """Return the process id of the recipient of a rank's signals.

    Args:
        leader: the process that the launcher has started.
        children: those of each process of the job.
    """
    level = [leader]
    while level:
        for pid in level:
            if _LIBRARY in _read(pid, "maps"):
                return pid
        level = [child for pid in level for child in children.get(pid, ())]
    return leader


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for signal `number`."""
    return bool(int(_field(pid, b"SigCgt:") or b"0", 16) >> (number - 1) & 1)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return _field(pid, b"State:")[:1] not in (b"", b"Z", b"X")


def _parent(pid: int) -> int:
    return int(_field(pid, b"PPid:") or b"0")


def _field(pid: int, name: bytes) -> bytes:
    """Return a field of /proc/PID/status; empty if the process is gone."""
    lines = (line for line in _read(pid, "status").splitlines() if line.startswith(name))
    return next(lines, name)[len(name) :].strip()


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
