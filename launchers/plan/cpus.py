"""Find the CPUs that this process may use, and deal them out to the ranks of one host.

Two hardware threads of one core usually have numbers far apart (0 and 8 of 16). Half of the list of
numbers would then be one half of every core, the slowest choice. So CPUs are first put in the order
of the machine: package, NUMA node, core, thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSFS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, order=True)
class Cpu:
    """One hardware thread and its place in the machine; sorts in the order of the machine."""

    package: int
    node: int
    core: int
    number: int

    @property
    def physical_core(self) -> tuple[int, int, int]:
        """The core of this hardware thread: two threads of one core have the same."""
        return (self.package, self.node, self.core)


def available() -> list[Cpu]:
    """Return the CPUs that this process may run on, in the order of the machine."""
    return sorted(_read(number) for number in os.sched_getaffinity(0))


def split(cpus: Sequence[Cpu], parts: int) -> list[tuple[int, ...]]:
    """Deal `cpus` out into `parts` disjoint sets of neighbors.

    No core is shared between two sets unless there are more parts than cores. Sizes differ by at
    most one core, and the first sets are the larger ones, because rank 0 also logs and saves.

    Args:
        cpus: the CPUs to deal out.
        parts: number of sets, from 1 to `len(cpus)`.

    Returns:
        One sorted tuple of CPU numbers per part.

    Raises:
        ValueError: if there are fewer CPUs than parts.
    """
    if not 1 <= parts <= len(cpus):
        raise ValueError(f"expected 1 to {len(cpus)} parts for {len(cpus)} CPUs, received {parts}")
    cores: dict[tuple[int, int, int], list[int]] = {}
    for cpu in sorted(cpus):
        cores.setdefault(cpu.physical_core, []).append(cpu.number)
    units = list(cores.values())
    if len(units) < parts:
        units = [[number] for unit in units for number in unit]
    size, extra = divmod(len(units), parts)
    sets, start = [], 0
    for part in range(parts):
        end = start + size + (1 if part < extra else 0)
        sets.append(tuple(sorted(number for unit in units[start:end] for number in unit)))
        start = end
    return sets


def shared(cpus: Sequence[Cpu], parts: int) -> list[tuple[int, ...]] | None:
    """Give each of `parts` ranks one CPU in turn, the same number of ranks to each CPU.

    Args:
        cpus: the CPUs to share; at least one.
        parts: number of ranks, more than CPUs.

    Returns:
        One CPU per rank; None if `parts` is no multiple of the CPUs. Ranks wait for the slowest in
        each step, which would then be one on a CPU with more ranks than others.
    """
    times, rest = divmod(parts, len(cpus))
    # Neighbors, which often work alone together, are not on the same CPU.
    sets: list[tuple[int, ...]] = [(cpu.number,) for cpu in sorted(cpus)]
    return None if rest else sets * times


def whole_nodes(cpus: Sequence[Cpu], parts: int) -> list[tuple[int, ...]]:
    """Give each of `parts` ranks all CPUs of one NUMA node, neighbors on the same node.

    Args:
        cpus: the CPUs to deal out; at least one.
        parts: number of ranks.

    Returns:
        One sorted tuple of CPU numbers per rank. Ranks share a node where there are more of them.
    """
    nodes: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        nodes.setdefault((cpu.package, cpu.node), []).append(cpu.number)
    sets = [tuple(sorted(numbers)) for numbers in nodes.values()]
    return [sets[part * len(sets) // parts] for part in range(parts)]


def _read(number: int) -> Cpu:
    folder = _SYSFS / f"cpu{number}"
    # Without sysfs (some containers) every CPU counts as a core of its own.
    return Cpu(
        package=_read_int(folder / "topology/physical_package_id", 0),
        node=min((int(p.name[4:]) for p in folder.glob("node[0-9]*")), default=0),
        core=_read_int(folder / "topology/core_id", number),
        number=number,
    )


def _read_int(path: Path, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return default
