"""The cost model's parameters of a job, from allreduces that the job runs itself.

They are measured by the library, whatever link it has, in a second or two:

- On a host: the first ranks of the first host, as many as it has cores for, reduce SHORT bytes,
  which is two waits, and LONG bytes, which are copied twice and added once, (n-1)/n of them. One
  rate stands for copies and additions, since both are the memory's.
- Between hosts: the first rank of every host reduces SHORT bytes, which is a message in each of
  log2(hosts) rounds, and an array so long that it takes LONG_ENOUGH. The bandwidth is the one at
  which the model predicts that time.

The cost model thus gives back the times that it was made from. A job of one host has no other: it
is taken to be as near as the next rank.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.scaling.placement import Placement
from ringar import cost_model
from ringar.job.cost_model import Parameters

SHORT, LONG = 4 << 10, 64 << 20
"""Bytes of the arrays on a host, and the most between hosts."""
MESSAGE = 8
"""Bytes of the short array between hosts."""
LONG_ENOUGH = 0.2
"""Seconds that a long allreduce between hosts takes: a token bucket lets a first burst pass."""
CALLS = (51, 5)
"""Timed allreduces of a short array, and of a long one."""


def local_rates(short: float, long: float, ranks: int) -> tuple[float, float]:
    """Returns the latency and the rate of a host, given the times of SHORT and LONG bytes."""
    moved = 3 * LONG * (ranks - 1) / ranks
    return short / 2, moved / max(long - short, long / 2)


def host_parameters(short: float, long: float, ranks: int = 2) -> Parameters:
    """Returns the parameters of a job of one host, given the times of SHORT and LONG bytes."""
    latency, rate = local_rates(short, long, ranks)
    return Parameters(latency, rate, rate, latency, rate)


def link_parameters(
    latency: float, seconds: float, nbytes: int, hosts: int, local: tuple[float, float]
) -> Parameters:
    """Returns the parameters of several hosts.

    Args:
        latency: seconds of a message between hosts.
        seconds: those of an allreduce of `nbytes` on one rank of each host.
        nbytes: of the array.
        hosts: how many.
        local: latency and rate within a host.
    """

    def at(bandwidth: float) -> Parameters:
        return Parameters(latency, bandwidth, local[1], *local)

    slow, fast = 1e4, 1e12
    while fast / slow > 1.001:
        middle = math.sqrt(slow * fast)
        predicted = cost_model.allreduce_seconds(at(middle), nbytes, hosts, 1, "ring")
        slow, fast = (middle, fast) if predicted > seconds else (slow, middle)
    return at(slow)


def rounds(hosts: int) -> int:
    """Returns the messages, one after the other, of a short allreduce."""
    unit = Parameters(1.0, 1e12, 1e12, 0.0, 1e12)
    return round(cost_model.Network(unit, hosts, 1).handshake())


def measure(placement: Placement, share: Callable[[float], float]) -> Parameters | None:
    """Measures the parameters of this job; None if it has one rank. All ranks call it.

    Args:
        placement: the ranks of the job.
        share: gives all ranks the number of rank 0.
    """
    local = _measure_host(placement, share)
    if placement.hosts == 1:
        return Parameters(*local, local[1], *local) if local else None
    if local is None:  # no host has a second rank
        local = 0.0, share(_adder())
    leads = placement.leads()
    short = share(_allreduce_seconds(leads, MESSAGE, CALLS[0]))
    nbytes, seconds = SHORT, 0.0
    while seconds < LONG_ENOUGH and nbytes < LONG:
        nbytes = min(LONG, 4 * nbytes)
        seconds = share(_allreduce_seconds(leads, nbytes, 1, "ring"))
    seconds = share(_allreduce_seconds(leads, nbytes, CALLS[1], "ring"))
    latency = short / rounds(placement.hosts)
    return link_parameters(latency, seconds, nbytes, placement.hosts, local)


def _measure_host(
    placement: Placement, share: Callable[[float], float]
) -> tuple[float, float] | None:
    """Measures latency and rate within the first host; None if it has one rank."""
    first = placement.members(placement.ranks_per_host)
    cores = {core for rank in first for core in placement.seats[rank].cores}
    ranks = first[: max(2, len(cores))]
    if len(ranks) < 2:
        return None
    short, long = (
        share(_allreduce_seconds(ranks, nbytes, calls))
        for nbytes, calls in zip((SHORT, LONG), CALLS, strict=True)
    )
    return local_rates(short, long, len(ranks))


def _adder() -> float:
    """Measures the bytes/s at which this rank adds arrays that fit into a cache."""
    received, addend = np.ones((2, SHORT), np.float32)
    begin = time.perf_counter()
    for _ in range(1000):
        np.add(received, addend, out=addend)
    return 1000 * received.nbytes / (time.perf_counter() - begin)


def _allreduce_seconds(ranks: list[int], nbytes: int, calls: int, algorithm: str = "") -> float:
    """Measures the median allreduce of these ranks; the others wait. All ranks call it."""
    import ringar
    from ringar.collectives.call import Call
    from ringar.job import native

    group = ringar.add_process_set(ranks)
    times = [math.nan]
    if group.included():
        array, total = np.ones((2, nbytes // 4), np.float32)
        set_id = group.process_set_id or 0
        spec = Call("allreduce", process_set=set_id, algorithm=algorithm).spec(array.dtype.name)
        call = native.Prepared(spec, [array], [total])
        call.run()
        times = []
        for _ in range(calls):
            ringar.barrier(process_set=group)
            begin = time.perf_counter()
            call.run()
            times.append(time.perf_counter() - begin)
    ringar.barrier()
    ringar.remove_process_set(group)
    return median(times)
