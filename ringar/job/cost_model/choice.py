"""Choose the algorithm of an allreduce, and the size of buckets, by the formulas of `Network`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from ringar.job.cost_model.network import MAX_RECURSIVE_DOUBLING_BYTES, Network
from ringar.job.cost_model.parameters import Parameters

ALGORITHMS = ("auto", "ring", "recursive_doubling", "halving_doubling", "hierarchical")
"""Algorithms of an allreduce over several hosts; `ringar.allreduce` explains them."""

LEAST_FOR_HALVING_DOUBLING = 4
"""The least number of hosts for which halving and doubling take fewer rounds than a ring."""

MIN_BUCKET_BYTES, MAX_BUCKET_BYTES, BUCKET_RATE = 8 << 20, 64 << 20, 0.9
"""Least and most bytes of a bucket of gradients, and how near to the best rate it comes."""

ALWAYS = 1 << 62
"""The bytes up to which an algorithm is the fastest if no array is too long for it."""


def allreduce_seconds(
    parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int, algorithm: str
) -> float:
    """Predict the seconds of an allreduce between hosts.

    Args:
        parameters: the parameters of the network and the hosts.
        nbytes: the bytes of each rank's array.
        hosts: the number of hosts.
        ranks_per_host: the number of ranks on each host.
        algorithm: one of ALGORITHMS.

    Raises:
        ValueError: the algorithm has another name, or a number is out of range.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"`algorithm`: expected {', '.join(ALGORITHMS)}, received {algorithm!r}")
    if nbytes < 0:
        raise ValueError(f"`nbytes`: expected 0 or more, received {nbytes}")
    network = Network(parameters, hosts, ranks_per_host)
    if algorithm in ("auto", "hierarchical"):
        return hierarchical(network, nbytes)
    if network.ranks == 1:
        return 0.0
    seconds: float = getattr(network, algorithm)(nbytes)
    return network.handshake() + seconds


def hierarchical(network: Network, nbytes: float) -> float:
    """Predict the seconds of an allreduce with `algorithm="auto"`: by the tables."""
    if network.hosts == 1:
        return network.local_allreduce(nbytes)
    if nbytes <= recursive_doubling_bytes(network):
        return network.handshake_allreduce(nbytes)
    if nbytes <= halving_doubling_bytes(network):
        return network.rail_halving_doubling(nbytes)
    return network.rail_ring(nbytes)


def pipeline(network: Network, nbytes: float) -> float:
    """Predict the seconds of an allreduce in shared memory and the faster way between hosts."""
    seconds = network.rail_ring(nbytes)
    if network.hosts < LEAST_FOR_HALVING_DOUBLING:
        return seconds
    return min(seconds, network.rail_halving_doubling(nbytes))


@functools.lru_cache(maxsize=4096)
def recursive_doubling_bytes(network: Network, most: int = MAX_RECURSIVE_DOUBLING_BYTES) -> int:
    """Return the longest array for which recursive doubling is the fastest.

    Args:
        network: the hosts and their ranks.
        most: the bytes of the longest array for recursive doubling.

    Returns:
        Bytes of the whole array, from 0 (never faster, or one host) to `most`.
    """
    if network.hosts < 2:
        return 0

    def wins(nbytes: int) -> bool:
        return network.handshake_allreduce(nbytes) < pipeline(network, nbytes)

    # Recursive doubling sends more bytes: once it is slower, it stays slower.
    return most if wins(most) else _last_win(wins, 0, most)


@functools.lru_cache(maxsize=4096)
def halving_doubling_bytes(network: Network) -> int:
    """Return the longest array for which halving and doubling is faster than the ring.

    Returns:
        Bytes of the whole array: 0 (never faster) to 16 GiB, or ALWAYS.
    """
    if network.hosts < LEAST_FOR_HALVING_DOUBLING:
        return 0

    def wins(nbytes: int) -> bool:
        return network.rail_halving_doubling(nbytes) < network.rail_ring(nbytes)

    sizes = [1 << k for k in range(10, 35)]
    won = [size for size in sizes if wins(size)]
    if not won:
        return 0
    return ALWAYS if won[-1] == sizes[-1] else _last_win(wins, won[-1], 2 * won[-1])


def bucket_bytes(network: Network) -> int:
    """Return the size of the buckets of gradients.

    Shorter buckets leave earlier and overlap better with the backward pass, but each takes the
    latencies of an allreduce, which grow with the number of hosts. So this is the least power of
    two, from MIN_BUCKET_BYTES on, whose allreduce has BUCKET_RATE of the rate of MAX_BUCKET_BYTES.
    """
    if network.hosts == 1:
        return MIN_BUCKET_BYTES

    def rate(nbytes: int) -> float:
        return nbytes / hierarchical(network, nbytes)

    size, enough = MIN_BUCKET_BYTES, BUCKET_RATE * rate(MAX_BUCKET_BYTES)
    while size < MAX_BUCKET_BYTES and rate(size) < enough:
        size *= 2
    return size


def _last_win(wins: Callable[[int], bool], shorter: int, longer: int) -> int:
    """Return where wins(shorter) turns into not wins(longer)."""
    while longer - shorter > 1:
        between = (shorter + longer) // 2
        shorter, longer = (between, longer) if wins(between) else (shorter, between)
    return shorter


@dataclass(frozen=True)
class Tables:
    """Hold the sizes up to which an algorithm is taken, by the number of hosts from 0 on.

    Attributes:
        recursive_doubling: `recursive_doubling_bytes` for each number of hosts.
        halving_doubling: `halving_doubling_bytes` for each.
        bucket_bytes: `bucket_bytes` for all hosts; 0: not known.
    """

    recursive_doubling: list[int]
    halving_doubling: list[int]
    bucket_bytes: int = 0


def tables(network: Network) -> Tables:
    """Return the tables for 0, 1, ... all hosts of a network.

    Numbers above 64, except the last one, have the sizes of a number at most 3% lower.
    """
    counts = [n if n <= 64 or n == network.hosts else _rounded(n) for n in range(network.hosts + 1)]
    networks = [replace(network, hosts=max(n, 1)) for n in counts]
    return Tables(
        [recursive_doubling_bytes(part) for part in networks],
        [halving_doubling_bytes(part) for part in networks],
        bucket_bytes(network),
    )


def _rounded(hosts: int) -> int:
    step = 1 << (hosts.bit_length() - 6)
    return hosts // step * step
