"""The formulas of the cost model: the seconds of each algorithm of an allreduce between hosts.

The model has three costs, named alpha, beta and gamma in the literature: a latency per message, the
time of the link per byte, and the time of the addition per byte (Hockney, "The communication
challenge for MPP", 1994; Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", 2005). n is the number of ranks, and B the bytes of each rank's array.

**Ring** (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", 2009). The array is cut into n segments. Reduce-scatter: in each of n-1 rounds every
rank sends a segment to its right neighbor and adds the one that it receives from its left
neighbor. All-gather: n-1 rounds more, without additions. With one message per round that takes

    (n-1) (2 latency + 2 B/n / bandwidth + B/n / reduction)

No algorithm sends fewer bytes per rank, so the ring wins for long messages; its rounds grow with n,
so it loses for short ones. The native ring (tf_ops/algorithms/ring.h) cuts segments into chunks, of
which LANES are under way: while one is added, others travel. The busiest resource sets the pace of
a round: the link, the adder or, for few chunks, the lane, which waits for a latency, a transfer and
an addition one after the other:

    (n-1) (max(B/n / bandwidth, B/n / reduction,
               passes (latency + chunk / bandwidth + chunk / reduction))
           + max(B/n / bandwidth, passes (latency + chunk / bandwidth)))

with passes = chunks / LANES, rounded up. The last bytes arrive a latency after they have left.
Where the adder is slower than the link, its last round hides the first one of the gather. Where
ranks of one host are neighbors in the ring, one message at a time crosses each host's link in each
direction, and the slowest connection sets the pace.

**Recursive doubling.** In round k a rank exchanges everything it has with the rank whose number
differs in bit k, and adds: log2(n) rounds of B bytes each,

    log2(n) (latency + B / bandwidth + B / reduction)

Few rounds, many bytes: it wins for short messages. If n is no power of two, let p be the largest
one below: of the first 2 (n-p) ranks every even one sends its array to the next rank before the
rounds, takes no part in them, and receives the result after them. That adds one round before (with
an addition) and one after. A message of more than EAGER_BYTES takes three latencies, since MPI asks
the receiver before it sends the message; chunks of the ring are shorter.

**Halving and doubling** (Rabenseifner, "Optimization of collective reduction operations", 2004; for
any n Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024). In each round
of the reduce-scatter the number of segments that a rank still adds up is halved, from n to 1; in
each round of the all-gather the number of those that it has doubles. With s(k) segments in round k,
which sum up to n-1:

    sum over k of 2 latency + 2 s(k) B/n / bandwidth + s(k) B/n / reduction

As many bytes as in the ring, in 2 log2(n) rounds, rounded up: it wins for middle sizes, and for
long arrays where n is large. The native library (tf_ops/algorithms/halving_doubling.h) takes an
array in blocks, of which BLOCK_LANES are under way: as in the ring the busiest resource sets the
pace, the link, the adder or the lane. The rounds' latencies count once, and the additions of one
block, which no other transfer hides.

**Handshake.** Every collective between hosts begins with recursive doubling of a few bytes, which
tells all ranks whether they agree. The arrays of a short allreduce travel in the same messages, so
that the handshake costs nothing extra.

**Hierarchical.** The L ranks of a host reduce in shared memory, each reduces its slice of B/L bytes
with those of the other hosts, by halving and doubling or by a ring, and shared memory gathers. The
slices share the host's link, so that B bytes count there, as with one rank per host. The three
stages form a pipeline of blocks: the longest stage counts in full, the others for one block. A
short array is reduced by every rank of a host and then travels whole, L times, by recursive
doubling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ringar.job.cost_model.parameters import Parameters

MAX_RECURSIVE_DOUBLING_BYTES = 256 * 1024
"""Recursive doubling needs room for a whole message; the native library has this much."""

EAGER_BYTES = 64 * 1024
"""Over TCP, MPI sends a longer message only after the receiver's answer: two more latencies."""

LANES, MIN_CHUNK_BYTES, CHUNK_BYTES = 24, 16384, 64000
"""Chunks of a segment under way, and their least and most bytes: as tf_ops/engine/tuning.cc."""

BLOCKS, BLOCK_LANES, MIN_BLOCK_BYTES, BLOCK_BYTES = 4, 8, 65536, 524288
"""Blocks of halving and doubling, those under way, and their least and most bytes: as there."""


@dataclass(frozen=True)
class Network:
    """Predict the seconds of collectives between the ranks of a job.

    Attributes:
        parameters: the parameters of the network and the hosts.
        hosts: the number of hosts.
        ranks_per_host: the number of ranks on each host.
        flows: the number of such collectives that share each host's link.

    Raises:
        ValueError: a number is below 1.
    """

    parameters: Parameters
    hosts: int
    ranks_per_host: int = 1
    flows: int = 1

    def __post_init__(self) -> None:
        for name in ("hosts", "ranks_per_host", "flows"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"`{name}`: expected 1 or more, received {value}")

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.hosts * self.ranks_per_host

    @cached_property
    def rail(self) -> Network:
        """One rank of each host; as many rails share each host's link as a host has ranks."""
        return Network(self.parameters, self.hosts, 1, self.ranks_per_host)

    def ring(self, nbytes: float, lanes: int = LANES) -> float:
        """Predict the seconds of a ring allreduce, neighbors on one host where possible.

        Args:
            nbytes: the bytes of each rank's array.
            lanes: the number of chunks of a segment under way; 1: each round is one message.

        Returns:
            Seconds, without the handshake; 0 for one rank.
        """
        p = self.parameters
        latency, bandwidth = p.latency, p.bandwidth / self.flows
        if self.hosts == 1:
            latency, bandwidth = p.local_latency, p.local_bandwidth
        elif self.ranks_per_host > 1:  # the slower of the two kinds of connection sets the pace
            latency = max(latency, p.local_latency)
            bandwidth = min(bandwidth, p.local_bandwidth)
        segment = nbytes / self.ranks
        count = chunks(segment, lanes)
        passes, chunk = math.ceil(count / lanes), segment / count
        link, adder = segment / bandwidth, segment / p.reduction
        gather = passes * (latency + chunk / bandwidth)
        scatter = gather + passes * chunk / p.reduction
        if self.ranks == 1:
            return 0.0
        last = max(link + latency, gather)
        # A sum travels on at once: the adder's last round hides the first round of the gather.
        hidden = min(link, max(0.0, adder - link)) * (1 - 1 / count)
        rounds = (self.ranks - 1) * max(link, adder, scatter)
        return rounds + (self.ranks - 2) * max(link, gather) + last - hidden

    def recursive_doubling(self, nbytes: float) -> float:
        """Predict the seconds of an allreduce by recursive doubling, host by host.

        Ranks of a host that send to other hosts in the same round share its link. An array longer
        than MAX_RECURSIVE_DOUBLING_BYTES travels in parts, one after the other.
        """
        p, ranks_per_host = self.parameters, self.ranks_per_host
        messages = max(1, math.ceil(nbytes / MAX_RECURSIVE_DOUBLING_BYTES))
        trips = messages * (3 if nbytes > EAGER_BYTES else 1)
        seconds = 0.0
        for senders, receivers, adds in exchanges(self.ranks):
            crossing = senders // ranks_per_host != receivers // ranks_per_host
            local = between = 0.0
            if not crossing.all():
                local = trips * p.local_latency + nbytes / p.local_bandwidth
            if crossing.any():
                out = np.bincount(senders[crossing] // ranks_per_host).max()
                into = np.bincount(receivers[crossing] // ranks_per_host).max()
                sharing = self.flows * int(max(out, into))
                between = trips * p.latency + nbytes * sharing / p.bandwidth
            seconds += max(local, between) + (nbytes / p.reduction if adds else 0.0)
        return seconds

    def halving_doubling(self, nbytes: float) -> float:
        """Predict the seconds of an allreduce by halving and doubling, host by host.

        The handshake is not included; 0 for one rank.
        """
        p = self.parameters
        count = blocks(nbytes, self.ranks)
        latencies = one_way = adding = lane = 0.0
        for before, after in edges(self.ranks):
            part = (before - after) / self.ranks * nbytes
            trips = 3 if part / count > EAGER_BYTES else 1
            link, wait = 0.0, 0.0
            if self.hosts > 1:  # so many ranks of a host have their partner on another one
                link = part * self.flows * min(after, self.ranks_per_host) / p.bandwidth
                wait = trips * p.latency
            if self.hosts == 1 or after < self.ranks_per_host:
                link = max(link, part / p.local_bandwidth)
                wait = max(wait, trips * p.local_latency)
            latencies += 2 * wait
            one_way += link
            adding += part / p.reduction
            lane += 2 * wait + (2 * link / self.flows + part / p.reduction) / count
        passes = math.ceil(count / BLOCK_LANES)
        busiest = max(one_way, adding) + one_way + min(one_way, adding) / count
        return max(busiest + latencies, passes * lane)

    def local_allreduce(self, nbytes: float) -> float:
        """Predict the seconds of an allreduce in the shared memory of one host; 0 for one rank."""
        p, ranks = self.parameters, self.ranks_per_host
        if ranks == 1:
            return 0.0
        moved = nbytes * (ranks - 1) / ranks
        copy = 2 * moved / p.local_bandwidth
        return 2 * p.local_latency + copy + moved / p.reduction

    def handshake(self) -> float:
        """Predict the seconds until all ranks know that all agree; 0 for one rank."""
        local = self.parameters.local_latency if self.ranks_per_host > 1 else 0.0
        return local + self.rail.recursive_doubling(0)

    def exchange_rows(self) -> float:
        """Predict the seconds until all ranks know how many rows each has, for an all-gather.

        Bruck's algorithm: in round k each rank sends the numbers of 2^k ranks, 8 bytes each, to the
        rank 2^k places before; 0 for one rank.
        """
        p, ranks_per_host = self.parameters, self.ranks_per_host
        count, seconds = 1, 0.0
        while count < self.ranks:
            nbytes = 8 * min(count, self.ranks - count)
            sharing = min(count, ranks_per_host)  # so many ranks of a host send to another one
            local = p.local_latency + nbytes / p.local_bandwidth
            between = p.latency + nbytes * sharing / p.bandwidth
            crosses, stays = self.hosts > 1, self.hosts == 1 or count < ranks_per_host
            seconds += max(between if crosses else 0.0, local if stays else 0.0)
            count *= 2
        return seconds

    def handshake_allreduce(self, nbytes: float) -> float:
        """Predict the seconds of an allreduce whose arrays travel in the handshake's messages."""
        p, ranks_per_host = self.parameters, self.ranks_per_host
        seconds = self.rail.recursive_doubling(nbytes)
        if ranks_per_host > 1:
            seconds += p.local_latency + nbytes / p.local_bandwidth
            seconds += (ranks_per_host - 1) * nbytes / p.reduction
        return seconds

    def rail_ring(self, nbytes: float) -> float:
        """Predict the seconds of an allreduce in shared memory and by rings between the hosts."""
        part = nbytes / self.ranks_per_host
        return self._pipeline(nbytes, self.rail.ring(part), chunks(part / self.hosts))

    def rail_halving_doubling(self, nbytes: float) -> float:
        """Predict the seconds of an allreduce in shared memory and by halving and doubling."""
        part = nbytes / self.ranks_per_host
        return self._pipeline(nbytes, self.rail.halving_doubling(part), blocks(part, self.hosts))

    def _pipeline(self, nbytes: float, between: float, count: int) -> float:
        local = self.local_allreduce(nbytes)
        return self.handshake() + (max(between, local) + min(between, local) / count)


def chunks(segment: float, lanes: int = LANES) -> int:
    """Return the number of chunks of a segment of so many bytes; 1 for one lane."""
    if lanes == 1:
        return 1
    return max(1, math.ceil(segment / min(max(segment / lanes, MIN_CHUNK_BYTES), CHUNK_BYTES)))


def exchanges(ranks: int) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """Return the rounds of recursive doubling: senders, receivers, and whether they add."""
    power = 1 << (ranks.bit_length() - 1)
    extra = ranks - power
    pairs = np.arange(extra) * 2
    # The ranks that take part, in order: the odd ones of the first 2 * extra, and all others.
    part = np.concatenate([pairs + 1, np.arange(2 * extra, ranks)])
    numbers = np.arange(power)
    rounds = [(part, part[numbers ^ (1 << bit)], True) for bit in range(power.bit_length() - 1)]
    if not extra:
        return rounds
    return [(pairs, pairs + 1, True), *rounds, (pairs + 1, pairs, False)]


def blocks(nbytes: float, ranks: int) -> int:
    """Return the number of blocks in which halving and doubling take so many bytes."""
    block = min(max(nbytes / BLOCKS, MIN_BLOCK_BYTES), BLOCK_BYTES)
    return max(1, math.ceil(nbytes / max(block, 64 * ranks)))


def edges(ranks: int) -> list[tuple[int, int]]:
    """Return the rounds of a reduce-scatter by halving: segments before and after each."""
    rounds = []
    while ranks > 1:
        rounds.append((ranks, (ranks + 1) // 2))
        ranks = rounds[-1][1]
    return rounds
