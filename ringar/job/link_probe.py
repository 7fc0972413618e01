"""Measurement of the hosts and the network for the cost model.

It runs once, when a job over several hosts starts, and must be short: small exchanges, a few larger
ones, additions and copies take 0.1 to 0.2 s on 2 to 8 hosts at 200 to 500 Mbit/s, and up to 0.45 s
if MPI has to connect the hosts first.

- Latency: every host's first rank sends a few bytes to the next host and receives from the one
  before, all at once, as in every round of a ring or of recursive doubling. Groups of eight such
  rounds are timed, and the median group counts: within a group rounds are short and long in turn
  where the ranks are out of step, since messages wait for late ranks.
- Bandwidth: the same with larger messages, until one takes 15 ms and eight latencies or is 16 MiB,
  then four of these without a pause. The median of the last three counts: token buckets, of clouds
  and of `tc qdisc ... tbf`, let a first burst pass faster. The bytes travel as in the ring, in
  chunks of which several are under way. MPI asks the receiver before it sends a longer message, and
  question and answer wait in the queues behind the bytes.
- Reduction: NumPy adds float32 arrays that fit into a cache, as chunks do; median.
- Within a host: MPI's barrier of the host's ranks, and NumPy's copy of an array that is larger than
  the inner caches. ringar's shared memory may be a little faster than that barrier.

All ranks measure at the same time, and the slowest rank counts: a ring runs at the speed of its
slowest link. All ranks get the same numbers, bit for bit.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ringar.job import mpi_survivors

if TYPE_CHECKING:
    from mpi4py import MPI

_WARM_UP = 4
"""Exchanges before the first timed one: MPI connects when it is first needed."""

_SMALL, _GROUP, _GROUPS, _SMALL_SECONDS = 8, 8, 4, 0.03
"""Bytes of a small message, messages per group, most groups, and seconds after which to stop."""

_FIRST, _LARGEST = 64 << 10, 16 << 20
"""Bytes of the first and the largest message for the bandwidth."""

_LONG_ENOUGH, _LATENCIES = 0.015, 8
"""Seconds, and latencies, that a long enough message takes."""

_CHUNK, _LANES = 64000, 8
"""Bytes of a chunk, as in tf_ops/engine/tuning.cc, and chunks under way: half a megabyte fills a
link. The ring has more lanes, for times in which a rank computes; here no rank does."""

_ADDED, _COPIED = 256 << 10, 16 << 20
"""Bytes of the arrays that are added and copied."""


def measure(comm: MPI.Comm, hosts: Sequence[int]) -> dict[str, float]:
    """Return the fields of `ringar.cost_model.Parameters`. Collective.

    Args:
        comm: an mpi4py communicator of all ranks, without other messages under way.
        hosts: for each rank, the number of its host. If all ranks are on one host, each counts as
            a host of its own.

    Raises:
        ValueError: `comm` has only one rank, or `hosts` has another length.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    if size < 2:
        raise ValueError("a link has two ends: expected a communicator of 2 ranks or more")
    if len(hosts) != size:
        raise ValueError(f"`hosts`: expected a host for each of {size} ranks, received {hosts}")
    if len(set(hosts)) == 1:
        hosts = range(size)
    first = {host: hosts.index(host) for host in hosts}
    of_host = mpi_survivors.part(comm.Split(hosts[rank], rank))
    leads = first[hosts[rank]] == rank
    of_leads = mpi_survivors.part(comm.Split(0 if leads else 1, rank))
    with of_host as local, of_leads as between:
        link = _link(between) if leads else None
        comm.Barrier()
        figures = (*_adder_and_copier(), _barrier(local))
    links, figures_of_ranks = zip(*comm.allgather((link, figures)), strict=True)
    latencies, bandwidths = zip(*filter(None, links), strict=True)
    additions, copies, barriers = zip(*figures_of_ranks, strict=True)
    return {
        "latency": max(latencies),
        "bandwidth": min(bandwidths),
        "reduction": min(additions),
        "local_latency": max(barriers),
        "local_bandwidth": min(copies),
    }


def _link(comm: MPI.Comm) -> tuple[float, float]:
    """Measure the seconds of a small message and the bytes/s of large ones to the next rank."""
    small = np.zeros(_SMALL, np.uint8), np.zeros(_SMALL, np.uint8)
    for _ in range(_WARM_UP):
        _exchange(comm, *small)
    groups: list[float] = []
    for _ in range(_GROUPS):
        groups.append(sum(_timed(lambda: _exchange(comm, *small), _GROUP)))
        if max(comm.allgather(sum(groups))) > _SMALL_SECONDS:
            break
    latency = max(comm.allgather(median(groups) / _GROUP))
    long_enough = max(_LONG_ENOUGH, _LATENCIES * latency)
    size = _FIRST
    while True:
        source, target = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        seconds = _timed(lambda: _exchange(comm, source, target), 1)[0]  # noqa: B023
        slowest = max(comm.allgather(seconds))
        if slowest >= long_enough or size >= _LARGEST:
            break
        size = min(_LARGEST, size * (4 if slowest < long_enough / 4 else 2))
    everyone = comm.allgather(_timed(lambda: _exchange(comm, source, target), 4))
    _, *rest = (max(times) for times in zip(*everyone, strict=True))
    seconds = median(rest)
    return latency, size / max(seconds - latency, seconds / 2)


def _exchange(comm: MPI.Comm, source: np.ndarray, target: np.ndarray) -> None:
    """Send to the next rank and receive from the one before, in chunks.

    Ranks yield between polls, so that ranks on one core do not spin through their time slices.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    edges = range(0, len(source), _CHUNK)
    under_way: list[MPI.Request] = []
    for edge in edges:
        chunk = slice(edge, edge + _CHUNK)
        under_way.append(comm.Irecv(target[chunk], (rank - 1) % size))
        under_way.append(comm.Isend(source[chunk], (rank + 1) % size))
        if len(under_way) >= 2 * _LANES:
            _finish(under_way[:2])
            del under_way[:2]
    _finish(under_way)


def _finish(requests: list[MPI.Request]) -> None:
    for request in requests:
        while not request.Test():
            os.sched_yield()


def _timed(call: Callable[[], object], times: int) -> list[float]:
    """Return the seconds of each of `times` calls."""
    marks = [time.perf_counter()]
    for _ in range(times):
        call()
        marks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(marks)]


def _adder_and_copier() -> tuple[float, float]:
    """Measure the bytes/s at which this rank adds, and copies."""
    received, addend = np.ones((2, _ADDED // 4), np.float32)
    adding = median(_timed(lambda: np.add(received, addend, out=addend), 9))
    source, target = np.ones((2, _COPIED // 4), np.float32)
    copying = median(_timed(lambda: np.copyto(target, source), 3))
    return _ADDED / adding, _COPIED / copying


def _barrier(comm: MPI.Comm) -> float:
    """Measure the seconds of a barrier of `comm`."""
    return median(_timed(comm.Barrier, 9))
