"""Measures what the cost model needs to know of the hosts and of the network between them.

Runs once, when a job over several hosts starts, and must not be felt: some small exchanges, a few
larger ones, some additions and copies: 0.1 to 0.2 s on 2 to 8 hosts at 200 to 500 Mbit/s, and up to
0.45 s with the time in which MPI connects them.

- Latency: every host's first rank sends a few bytes to the next host and receives from the one
  before, as all do at once in every round of a ring or of recursive doubling; median.
- Bandwidth: the same with amounts that grow until one takes 15 ms or is 16 MiB, then four of them
  without a pause. The median of the last three counts: token buckets, of clouds and of
  `tc qdisc ... tbf`, let a first burst pass faster than they let the rest. They travel as the
  ring's do, in chunks of which several are under way: MPI asks the receiver before it sends a
  longer message, and question and answer wait in the queues that the bytes have filled.
- Reduction: NumPy adds float32 arrays that fit into a cache, as chunks do; median.
- Within a host: MPI's barrier of the host's ranks, and NumPy's copy of an array that fits into none
  of the inner caches. ringar's own shared memory may be a little faster than the former.

Whatever all ranks do at once is timed while they do, and the slowest rank counts: a ring runs at
the speed of its slowest hop. All ranks get the same numbers, bit by bit.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

_WARM_UP = 4
"""Exchanges before the first timed one: MPI connects when it is first needed."""

_SMALL, _GROUP, _GROUPS, _SMALL_SECONDS = 8, 8, 4, 0.03
"""Bytes of a small message, and how many are timed: a group, and more while there is time."""

_FIRST, _LARGEST, _LONG_ENOUGH = 64 << 10, 16 << 20, 0.015
"""Bytes of the first and the largest message for the bandwidth, and seconds that are enough."""

_CHUNK, _LANES = 64000, 8
"""Bytes of a chunk, as in tf_ops/engine/tuning.cc, and how many are under way: half a megabyte
fills a link. The ring has more, for times when a rank computes, which none does here."""

_ADDED, _COPIED = 256 << 10, 16 << 20
"""Bytes of the arrays that are added and copied."""


def measure(comm: Any, hosts: Sequence[int]) -> dict[str, float]:
    """Return the fields of `ringar.cost_model.Parameters`, which see. Collective.

    Args:
        comm: an mpi4py communicator of all ranks, in which nothing else is on its way.
        hosts: for each rank, the number of its host. If all are on one, what lies between the ranks
            is measured in the place of what lies between hosts.

    Raises:
        ValueError: if there is one rank only, or not one host for each.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    if size < 2:
        raise ValueError("a link has two ends: expected a communicator of 2 ranks or more")
    if len(hosts) != size:
        raise ValueError(f"`hosts`: expected a host for each of {size} ranks, received {hosts}")
    if len(set(hosts)) == 1:
        hosts = range(size)
    first = {host: hosts.index(host) for host in hosts}
    local = comm.Split(hosts[rank], rank)
    leads = first[hosts[rank]] == rank
    between = comm.Split(0 if leads else 1, rank)
    try:
        link = _link(between) if leads else None
        comm.Barrier()
        mine = (*_adder_and_copier(), _barrier(local))
    finally:
        between.Free()
        local.Free()
    everyone = comm.allgather((link, mine))
    links = [found for found, _ in everyone if found is not None]
    others = [found for _, found in everyone]
    return {
        "latency": max(found[0] for found in links),
        "bandwidth": min(found[1] for found in links),
        "reduction": min(found[0] for found in others),
        "local_latency": max(found[2] for found in others),
        "local_bandwidth": min(found[1] for found in others),
    }


def _link(comm: Any) -> tuple[float, float]:
    """Measure the seconds of a small message and the bytes/s of large ones to the next rank."""
    small = np.zeros(_SMALL, np.uint8), np.zeros(_SMALL, np.uint8)
    for _ in range(_WARM_UP):
        _exchange(comm, *small)
    times: list[float] = []
    for _ in range(_GROUPS):
        times += _timed(lambda: _exchange(comm, *small), _GROUP)
        if max(comm.allgather(sum(times))) > _SMALL_SECONDS:
            break
    latency = max(comm.allgather(median(times)))
    size = _FIRST
    while True:
        given, got = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        slowest = max(comm.allgather(_timed(lambda: _exchange(comm, given, got), 1)[0]))  # noqa: B023
        if slowest >= _LONG_ENOUGH or size >= _LARGEST:
            break
        size = min(_LARGEST, size * (4 if slowest < _LONG_ENOUGH / 4 else 2))
    everyone = comm.allgather(_timed(lambda: _exchange(comm, given, got), 4))
    _, *rest = (max(times) for times in zip(*everyone, strict=True))
    seconds = median(rest)
    return latency, size / max(seconds - latency, seconds / 2)


def _exchange(comm: Any, given: np.ndarray, got: np.ndarray) -> None:
    """Send to the next rank and receive from the one before, in chunks.

    Ranks that share a core would spin through each other's time slices: between looks they yield.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    edges = range(0, len(given), _CHUNK)
    under_way: list[Any] = []
    for edge in edges:
        chunk = slice(edge, edge + _CHUNK)
        under_way.append(comm.Irecv(got[chunk], (rank - 1) % size))
        under_way.append(comm.Isend(given[chunk], (rank + 1) % size))
        if len(under_way) >= 2 * _LANES:
            _finish(under_way[:2])
            del under_way[:2]
    _finish(under_way)


def _finish(requests: list[Any]) -> None:
    for request in requests:
        while not request.Test():
            os.sched_yield()


def _timed(call: Callable[[], Any], times: int) -> list[float]:
    """Return the seconds of each of some calls."""
    marks = [time.perf_counter()]
    for _ in range(times):
        call()
        marks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(marks)]


def _adder_and_copier() -> tuple[float, float]:
    """Measure the bytes/s that this rank adds, and copies."""
    received, mine = np.ones((2, _ADDED // 4), np.float32)
    adding = median(_timed(lambda: np.add(received, mine, out=mine), 9))
    source, target = np.ones((2, _COPIED // 4), np.float32)
    copying = median(_timed(lambda: np.copyto(target, source), 3))
    return _ADDED / adding, _COPIED / copying


def _barrier(comm: Any) -> float:
    """Measure the seconds until the ranks of `comm` have waited for each other."""
    return median(_timed(comm.Barrier, 9))
