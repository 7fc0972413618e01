"""The report on a failed job: the rank that was the cause, how it ended, its last lines."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ringar import errors
from ringar.launchers.errors import UsageError
from ringar.launchers.supervise.ranks import Rank

Failure = TypeVar("Failure")

#: The last lines of a rank that failed because another rank is gone have one of these: ringar's own
#: exception, TensorFlow's, or the message of both. Compiled code passes only the message on, and a
#: long error of a graph ends with it.
_LOST_PEER = (b"PeerLostError", b"AbortedError", b"expected all ranks to take part, but rank")

#: The headings of docs/troubleshooting.md, by the class that ends a traceback.
_HEADINGS = {f"ringar.errors.{name}": name.lower() for name in errors.__all__} | {
    f"tensorflow.python.framework.errors_impl.{name}": heading
    for name, heading in {
        "AbortedError": "peerlosterror",
        "DeadlineExceededError": "deadlineerror",
        "FailedPreconditionError": "notinitializederror",
        "InternalError": "error-classes",  # compiled code knows no other class
        "InvalidArgumentError": "mismatcherror",
        "ResourceExhaustedError": "outofmemoryerror",
        "UnimplementedError": "unsupportederror",
    }.items()
}
_PHRASES = {
    "expected all ranks to take part": "peerlosterror",
    "within the deadline of": "deadlineerror",
    "expected the same collective": "mismatcherror",
}
_CLASS = re.compile(
    r"^(ringar\.errors\.\w+|tensorflow\.[\w.]+(?=: .*\brank \d+ \| )): ", re.DOTALL | re.MULTILINE
)

OTHERS_GO_ON = "the others go on (--max-failures)"


def is_consequence(rank: Rank) -> bool:
    """Return whether the last lines of `rank` report a lost peer."""
    return any(mark in line for line in rank.stderr.tail() for mark in _LOST_PEER)


def cause(failures: Sequence[Rank]) -> Rank:
    """Return the rank whose failure made the others fail.

    It is the one that died first. A rank that reports a lost peer is passed over if there is
    another: the lost peer may take longer to leave Python than the rank that noticed.

    Args:
        failures: the ranks that failed, in the order of their death; not empty.
    """
    return first_cause(failures, is_consequence)


def first_cause(failures: Sequence[Failure], is_consequence: Callable[[Failure], bool]) -> Failure:
    """Return the first failure that is no consequence of another, or else the first one."""
    return next((failure for failure in failures if not is_consequence(failure)), failures[0])


def report(ranks: Sequence[Rank], failures: Sequence[Rank]) -> tuple[str, list[bytes]]:
    """Return the report at the end of a failed job.

    Args:
        ranks: all ranks that were started.
        failures: those that failed, in the order of their death; not empty.

    Returns:
        The summary in one line, and the last lines of the rank that was the cause, with the place
        in the guide that explains its error.
    """
    first = cause(failures)
    tail: list[bytes] = []
    if len(ranks) > 1:  # a lone rank has just said it
        tail = [b"[%d] " % first.number + line for line in first.stderr.tail()]
        if tail:
            tail.insert(
                0, b"ringarrun: the last lines that rank %d wrote to stderr:" % first.number
            )
    tail += guide(first.stderr.tail())
    text = f"rank {first.number} of {len(ranks)} {ending(first)}"
    later = [rank for rank in failures if rank is not first]
    stopped_ranks = [rank for rank in ranks if rank.is_stopped]
    if later:
        text += f"; {_names(later)} failed with it"
    if stopped_ranks:
        text += f"; {_names(stopped_ranks)} {'was' if len(stopped_ranks) == 1 else 'were'} stopped"
    return text, tail


def guide(tail: Sequence[bytes]) -> list[bytes]:
    """Return the line that names the guide to the error of ringar in `tail`, if there is one."""
    text = b"\n".join(tail).decode(errors="replace")
    names = [name for name in _CLASS.findall(text) if name in _HEADINGS]
    if not names:
        return []
    heading = _HEADINGS[names[-1]]
    if heading == "error-classes":
        heading = next((h for phrase, h in _PHRASES.items() if phrase in text), heading)
    return [f"ringarrun: see docs/troubleshooting.md#{heading}".encode()]


def cannot_execute(program: str, error: OSError) -> UsageError:
    """Return the error for a program that exists but does not start."""
    is_missing = error.errno == errno.ENOENT
    hint = (
        " (is the interpreter in its first line there?)"
        if is_missing or error.errno == errno.ENOEXEC
        else ""
    )
    return UsageError(
        f"{program}: expected a program that can be executed: {error.strerror}{hint}", 126
    )


def cannot_write(path: Path, error: OSError) -> UsageError:
    """Return the error for a file of `--output-filename` that cannot be written."""
    return UsageError(f"--output-filename: cannot write {str(path)!r}: {error.strerror}")


def ending(rank: Rank) -> str:
    """Describe how a failed rank ended."""
    status = rank.status
    if status is None or not status.signal:
        return f"failed with {status}"
    hint = "; the system may have run out of memory" if status.signal == signal.SIGKILL else ""
    return f"was killed by {status}{hint}"


def _names(ranks: Sequence[Rank]) -> str:
    numbers = sorted(rank.number for rank in ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    # Runs of more than two are shortened: with 64 ranks the list would hide the rest.
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return "ranks " + ", ".join(parts)
