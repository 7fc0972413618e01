"""Read the hosts that a scheduler has given to this job: SLURM, PBS or LSF.

The environment of a job's script names the hosts: with SLURM as a compressed list and a list of
counts, with PBS as a file with one line per slot, with LSF as a file of that form or as pairs in a
variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ringar.launchers.errors import UsageError
from ringar.launchers.plan.hosts import Host, collect

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class Allocation:
    """The hosts of a job of `scheduler`: "SLURM", "PBS" or "LSF"."""

    scheduler: str
    hosts: tuple[Host, ...]


def find(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that this process runs in; None outside of any.

    Raises:
        UsageError: there is one, but its variables have an unknown form.
    """
    if "SLURM_JOB_ID" in environ:
        return Allocation("SLURM", _slurm(environ))
    if "PBS_NODEFILE" in environ:
        return Allocation("PBS", _node_file(environ["PBS_NODEFILE"], "PBS_NODEFILE"))
    if "LSB_DJOB_HOSTFILE" in environ:
        return Allocation("LSF", _node_file(environ["LSB_DJOB_HOSTFILE"], "LSB_DJOB_HOSTFILE"))
    if "LSB_MCPU_HOSTS" in environ:
        return Allocation("LSF", _pairs(environ["LSB_MCPU_HOSTS"]))
    return None


def _slurm(environ: Mapping[str, str]) -> tuple[Host, ...]:
    nodes = list(expand(environ.get("SLURM_JOB_NODELIST", environ.get("SLURM_NODELIST", ""))))
    # Tasks where the user has asked for tasks; CPUs otherwise (salloc -N 2, for one).
    text = environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE") or ""
    numbers = list(counts(text))
    if not nodes or len(nodes) != len(numbers):
        raise UsageError(
            "SLURM: expected as many nodes in SLURM_JOB_NODELIST as numbers in "
            f"SLURM_TASKS_PER_NODE, received {len(nodes)} nodes and {text!r}; "
            "name the hosts with -H"
        )
    return tuple(Host(name, count) for name, count in zip(nodes, numbers, strict=True))


def counts(text: str) -> Iterator[int]:
    """Yield the numbers in a list of SLURM: `4(x2),2` is 4, 4, 2."""
    for part in text.split(",") if text else ():
        match = _COUNT.fullmatch(part)
        if match is None:
            raise UsageError(f"SLURM: expected numbers as in 4(x2),2, received {text!r}")
        yield from [int(match[1])] * int(match[2] or 1)


def expand(nodes: str) -> Iterator[str]:
    """Yield the names in a list of SLURM: `a[1-2,05],b` is a1, a2, a05, b."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        yield from _expand_one(part)


def _expand_one(part: str) -> Iterator[str]:
    match = _BRACKETS.search(part)
    if match is None:
        yield part
        return
    for piece in match[1].split(","):
        first, _, last = piece.partition("-")
        try:
            numbers = range(int(first), int(last or first) + 1)
        except ValueError:
            raise UsageError(
                f"SLURM: expected nodes as in n[1-3,7], received {part!r} in SLURM_JOB_NODELIST"
            ) from None
        for number in numbers:
            name = f"{part[: match.start()]}{number:0{len(first)}d}{part[match.end() :]}"
            yield from _expand_one(name)


def _node_file(path: str, variable: str) -> tuple[Host, ...]:
    try:
        names = Path(path).read_text().split()
    except OSError as error:
        raise UsageError(
            f"{variable}: expected a file of hosts, received {path!r}: {error.strerror}; "
            "name the hosts with -H"
        ) from error
    if not names:
        raise UsageError(f"{variable}: expected a file of hosts, received {path!r}, which is empty")
    return collect(names)


def _pairs(text: str) -> tuple[Host, ...]:
    words = text.split()
    names, counts = words[::2], words[1::2]
    if not names or len(names) != len(counts) or not all(map(str.isdecimal, counts)):
        raise UsageError(
            f"LSB_MCPU_HOSTS: expected hosts with their slots, as in 'h1 4 h2 4', received {text!r}"
        )
    return tuple(Host(name, int(count)) for name, count in zip(names, counts, strict=True))
