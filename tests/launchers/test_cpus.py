from __future__ import annotations

import os

import pytest

from ringar.launchers.plan.cpus import Cpu, available, split


def machine(packages: int, cores: int, threads: int) -> list[Cpu]:
    """CPUs numbered as Linux mostly does: first one thread of each core, then the second ones."""
    total = packages * cores
    return [
        Cpu(core // cores, core // cores, core % cores, core + thread * total)
        for core in range(total)
        for thread in range(threads)
    ]


def test_threads_of_a_core_stay_together() -> None:
    assert split(machine(1, 4, 2), 2) == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_ranks_do_not_cross_packages() -> None:
    assert split(machine(2, 2, 2), 2) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert split(machine(2, 2, 2), 4) == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_more_ranks_than_cores_share_cores_but_not_threads() -> None:
    assert split(machine(1, 2, 2), 3) == [(0, 2), (1,), (3,)]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 7, 8])
def test_every_cpu_is_dealt_out_once(parts: int) -> None:
    sets = split(machine(1, 8, 1), parts)
    assert len(sets) == parts
    assert sorted(number for numbers in sets for number in numbers) == list(range(8))
    sizes = [len(numbers) for numbers in sets]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("parts", [0, 3])
def test_number_of_parts_out_of_range(parts: int) -> None:
    with pytest.raises(ValueError, match=f"expected 1 to 2 parts for 2 CPUs, received {parts}"):
        split(machine(1, 2, 1), parts)


def test_available_are_those_of_this_process() -> None:
    assert {cpu.number for cpu in available()} == os.sched_getaffinity(0)
