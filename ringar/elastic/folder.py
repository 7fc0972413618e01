"""The folder of `--elastic-dir`: the last commits of a job, from which it goes on after its end.

A commit is a file, `commit-N.pickle`: a line of JSON with the number, the layout of the state, the
length and the checksum of what follows, and then the state. The last two are kept. The newer one is
on the disk before the older one is removed, so one of them is intact whatever happens, and they
never take more room than two. A file appears when all of it is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ringar.errors import MismatchError, RingarError
from ringar.job import log, membership, place

_log = log.logger(__name__)

_FORMAT = 1
_TEMPORARY = "commit.tmp"
_SHOWN = 3


def folder() -> Path | None:
    """Return the folder, where the user has asked for one."""
    path = os.environ.get(membership.FOLDER_VARIABLE)
    return Path(path) if path else None


def path_of(where: Path, number: int) -> Path:
    """Return the file of a commit."""
    return where / f"commit-{number}.pickle"


def write(where: Path, number: int, layout: Mapping[str, str], packed: object) -> None:
    """Write a commit, and keep the one before it.

    Raises:
        OSError: it cannot be written; the one before is still there.
    """
    body = pickle.dumps(packed)
    head = {"format": _FORMAT, "commit": number, "layout": dict(layout)}
    head |= {"bytes": len(body), "checksum": zlib.crc32(body)}
    numbers = _numbers(where)
    before = [earlier for earlier in numbers if earlier < number][-1:]
    for earlier in before:
        _sync(path_of(where, earlier))
    for obsolete in set(numbers) - {*before}:
        path_of(where, obsolete).unlink(missing_ok=True)
    beside = where / _TEMPORARY
    try:
        with open(beside, "wb") as file:
            file.write(json.dumps(head).encode() + b"\n")
            file.write(body)
        beside.replace(path_of(where, number))
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def remove(where: Path) -> None:
    """Remove all commits: the training is done."""
    for path in [*(path_of(where, number) for number in _numbers(where)), where / _TEMPORARY]:
        path.unlink(missing_ok=True)


def read(where: Path, layout: Mapping[str, str]) -> tuple[int, Any] | None:
    """Return the number and the state of the newest commit that is intact; None without any.

    Args:
        where: the folder.
        layout: that of the state which is to take the commit.

    Raises:
        MismatchError: the commit is that of another model or state.
        RingarError: no commit is intact, or the newest one cannot be read by this program.
    """
    faults = []
    for number in reversed(_numbers(where)):
        try:
            head, body = _contents(path_of(where, number))
        except (OSError, _DamagedError) as error:
            faults.append(f"commit {number}: {_reason(error)}")
            continue
        _require(layout, head["layout"], where, number)
        if faults:
            _log.warning("%s: %s; the state is that of commit %d", where, "; ".join(faults), number)
        return number, _unpickled(body, where, number)
    if faults:
        raise RingarError(
            f"{_begin(where)} an intact commit; received {'; '.join(faults)}. "
            "Bring back a copy, or remove the files to begin anew"
        )
    return None


class _DamagedError(Exception):
    """Report a file that differs from what was written."""


def _differences(layout: Mapping[str, str], of_commit: Mapping[str, str]) -> Iterator[str]:
    for name in dict.fromkeys([*layout, *of_commit]):
        expected, received = layout.get(name, "nothing"), of_commit.get(name, "nothing")
        if expected != received:
            yield f"{name}: expected {expected}, received {received}"


def _require(
    layout: Mapping[str, str], of_commit: Mapping[str, str], where: Path, number: int
) -> None:
    if differences := list(_differences(layout, of_commit)):
        rest = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise MismatchError(
            f"{_begin(where)} a commit of this program's state; received commit {number} of "
            f"another one ({'; '.join(differences[:_SHOWN])}{rest}). Start the program that has "
            "written it, name another folder, or remove the files to begin anew"
        )


def _unpickled(body: bytes, where: Path, number: int) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:  # whatever a class of the user's raises
        raise RingarError(
            f"{_begin(where)} objects that this program can read; received commit {number}, which "
            f"raises {type(error).__name__}: {error}. Start the program that has written it, or "
            "remove the files to begin anew"
        ) from error


def _begin(where: Path) -> str:
    return f"rank {place.rank()} | expected in {where} (--elastic-dir)"


def _reason(error: Exception) -> str:
    return str(error.strerror if isinstance(error, OSError) else error)


def _contents(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the description and the rest of a file.

    Raises:
        _DamagedError: it is not intact.
    """
    with open(path, "rb") as file:
        text, body = file.readline(), file.read()
    try:
        head: dict[str, Any] = json.loads(text)
        number, checksum = int(head["bytes"]), int(head["checksum"])
    except (ValueError, KeyError, TypeError):
        raise _DamagedError("not the beginning of a commit") from None
    if len(body) != number:
        raise _DamagedError(f"cut off after {len(body)} of {number} bytes")
    if zlib.crc32(body) != checksum:
        raise _DamagedError("changed after it was written")
    return head, body


def _numbers(where: Path) -> list[int]:
    """Return the numbers of the commits that are there, in order."""
    names = [path.name[len("commit-") : -len(".pickle")] for path in where.glob("commit-*.pickle")]
    return sorted(int(name) for name in names if name.isdecimal())


def _sync(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        os.fsync(file.fileno())
