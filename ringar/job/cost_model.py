"""A cost model of allreduce between hosts, for the choice of the algorithm.

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

The choice is two tables made from these formulas (`recursive_doubling_bytes`,
`halving_doubling_bytes`, `tables`). The parameters are measured at start (`measure`,
`ringar.job.link_probe`) or read from the file that RINGAR_COST_MODEL names. The module needs NumPy
alone.

"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ringar.job import link_probe

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Parameters", "allreduce_seconds", "load", "save"]

VARIABLE = "RINGAR_COST_MODEL"
"""Names a file with parameters, in place of a measurement."""

ALGORITHMS = ("auto", "ring", "recursive_doubling", "halving_doubling", "hierarchical")
"""Algorithms of an allreduce over several hosts; `ringar.allreduce` explains them."""

MAX_RECURSIVE_DOUBLING_BYTES = 256 * 1024
"""Recursive doubling needs room for a whole message; the native library has this much."""

EAGER_BYTES = 64 * 1024
"""Over TCP, MPI sends a longer message only after the receiver's answer: two more latencies."""

LANES, MIN_CHUNK_BYTES, CHUNK_BYTES = 24, 16384, 64000
"""Chunks of a segment under way, and their least and most bytes: as tf_ops/engine/tuning.cc."""

BLOCKS, BLOCK_LANES, MIN_BLOCK_BYTES, BLOCK_BYTES = 4, 8, 65536, 524288
"""Blocks of halving and doubling, those under way, and their least and most bytes: as there."""

LEAST_FOR_HALVING_DOUBLING = 4
"""Hosts from which on halving and doubling take fewer rounds than a ring."""

MIN_BUCKET_BYTES, MAX_BUCKET_BYTES, BUCKET_RATE = 8 << 20, 64 << 20, 0.9
"""Least and most bytes of a bucket of gradients, and how near to the best rate it comes."""

ALWAYS = 1 << 62
"""The bytes up to which an algorithm is the fastest if no array is too long for it."""


@dataclass(frozen=True)
class Parameters:
    """Describe the network and the hosts, in seconds and bytes per second.

    Attributes:
        latency: seconds of a short message between hosts, while all hosts send at once.
        bandwidth: bytes/s that one host sends to another, in one direction, while it receives as
            many.
        reduction: bytes/s of received data that a rank adds to its own.
        local_latency: seconds until the ranks of a host have waited for each other once.
        local_bandwidth: bytes/s that a rank copies within its host, while the others copy, too.

    Raises:
        ValueError: a latency is negative, a rate not positive, or either not finite.
    """

    latency: float
    bandwidth: float
    reduction: float
    local_latency: float
    local_bandwidth: float

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"`{name}`: expected a number, received {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"`{name}`: expected a finite number, received {value}")
            if name.endswith("latency") and value < 0:
                raise ValueError(f"`{name}`: expected seconds, 0 or more, received {value}")
            if not name.endswith("latency") and value <= 0:
                raise ValueError(f"`{name}`: expected bytes/s, more than 0, received {value}")


def _check(nbytes: float, hosts: int, ranks_per_host: int, flows: int) -> None:
    """Raise ValueError for sizes that no job can have."""
    if nbytes < 0:
        raise ValueError(f"`nbytes`: expected 0 or more, received {nbytes}")
    counts = (("hosts", hosts), ("ranks_per_host", ranks_per_host), ("flows", flows))
    for name, value in counts:
        if value < 1:
            raise ValueError(f"`{name}`: expected 1 or more, received {value}")


def chunks(segment: float, lanes: int = LANES) -> int:
    """Return the number of chunks of a segment of so many bytes; 1 for one lane."""
    if lanes == 1:
        return 1
    return max(1, math.ceil(segment / min(max(segment / lanes, MIN_CHUNK_BYTES), CHUNK_BYTES)))


def ring(
    parameters: Parameters,
    nbytes: float,
    hosts: int,
    ranks_per_host: int = 1,
    flows: int = 1,
    lanes: int = LANES,
) -> float:
    """Predict the seconds of a ring allreduce over all ranks, neighbors on one host where possible.

    Args:
        parameters: the parameters of the network and the hosts.
        nbytes: the bytes of each rank's array.
        hosts: the number of hosts.
        ranks_per_host: the number of ranks on each host.
        flows: the number of such rings that share each host's link.
        lanes: the number of chunks of a segment under way; 1: each round is one message.

    Returns:
        Seconds, without the handshake; 0 for one rank.
    """
    _check(nbytes, hosts, ranks_per_host, flows)
    ranks = hosts * ranks_per_host
    latency, bandwidth = parameters.latency, parameters.bandwidth / flows
    if hosts == 1:
        latency, bandwidth = parameters.local_latency, parameters.local_bandwidth
    elif ranks_per_host > 1:  # the slower of the two kinds of connection sets the pace
        latency = max(latency, parameters.local_latency)
        bandwidth = min(bandwidth, parameters.local_bandwidth)
    segment = nbytes / ranks
    count = chunks(segment, lanes)
    passes, chunk = math.ceil(count / lanes), segment / count
    link, adder = segment / bandwidth, segment / parameters.reduction
    gather = passes * (latency + chunk / bandwidth)
    scatter = gather + passes * chunk / parameters.reduction
    if ranks == 1:
        return 0.0
    last = max(link + latency, gather)
    # A sum travels on at once: the adder's last round hides the first round of the gather.
    hidden = min(link, max(0.0, adder - link)) * (1 - 1 / count)
    rounds = (ranks - 1) * max(link, adder, scatter) + (ranks - 2) * max(link, gather)
    return rounds + last - hidden


def _exchanges(ranks: int) -> list[tuple[np.ndarray, np.ndarray, bool]]:
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


def recursive_doubling(
    parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int = 1, flows: int = 1
) -> float:
    """Predict the seconds of an allreduce by recursive doubling over all ranks, host by host.

    Ranks of a host that send to other hosts in the same round share its link. An array longer than
    MAX_RECURSIVE_DOUBLING_BYTES travels in parts, one after the other.

    Args:
        parameters: the parameters of the network and the hosts.
        nbytes: the bytes of each rank's array.
        hosts: the number of hosts.
        ranks_per_host: the number of ranks on each host.
        flows: the number of such exchanges that share each host's link.

    Returns:
        Seconds; 0 for one rank.
    """
    _check(nbytes, hosts, ranks_per_host, flows)
    ranks = hosts * ranks_per_host
    messages = max(1, math.ceil(nbytes / MAX_RECURSIVE_DOUBLING_BYTES))
    trips = messages * (3 if nbytes > EAGER_BYTES else 1)
    seconds = 0.0
    for senders, receivers, adds in _exchanges(ranks):
        crossing = senders // ranks_per_host != receivers // ranks_per_host
        local = 0.0 if crossing.all() else (
            trips * parameters.local_latency + nbytes / parameters.local_bandwidth
        )  # fmt: skip
        between = 0.0
        if crossing.any():
            out = np.bincount(senders[crossing] // ranks_per_host).max()
            into = np.bincount(receivers[crossing] // ranks_per_host).max()
            sharing = flows * int(max(out, into))
            between = trips * parameters.latency + nbytes * sharing / parameters.bandwidth
        seconds += max(local, between) + (nbytes / parameters.reduction if adds else 0.0)
    return seconds


def blocks(nbytes: float, ranks: int) -> int:
    """Return the number of blocks in which halving and doubling take so many bytes."""
    block = min(max(nbytes / BLOCKS, MIN_BLOCK_BYTES), BLOCK_BYTES)
    return max(1, math.ceil(nbytes / max(block, 64 * ranks)))


def edges(ranks: int) -> list[tuple[int, int]]:
    """Return the rounds of a reduce-scatter by halving: segments before and after each."""
    found = []
    while ranks > 1:
        found.append((ranks, (ranks + 1) // 2))
        ranks = found[-1][1]
    return found


def halving_doubling(
    parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int = 1, flows: int = 1
) -> float:
    """Predict the seconds of an allreduce by halving and doubling over all ranks, host by host.

    Args:
        parameters: the parameters of the network and the hosts.
        nbytes: the bytes of each rank's array.
        hosts: the number of hosts.
        ranks_per_host: the number of ranks on each host.
        flows: the number of such exchanges that share each host's link.

    Returns:
        Seconds, without the handshake; 0 for one rank.
    """
    _check(nbytes, hosts, ranks_per_host, flows)
    ranks = hosts * ranks_per_host
    count = blocks(nbytes, ranks)
    latencies = one_way = adding = lane = 0.0
    for more, fewer in edges(ranks):
        part = (more - fewer) / ranks * nbytes
        trips = 3 if part / count > EAGER_BYTES else 1
        link, wait = 0.0, 0.0
        if hosts > 1:  # so many ranks of a host have their partner on another one
            link = part * flows * min(fewer, ranks_per_host) / parameters.bandwidth
            wait = trips * parameters.latency
        if hosts == 1 or fewer < ranks_per_host:
            link = max(link, part / parameters.local_bandwidth)
            wait = max(wait, trips * parameters.local_latency)
        latencies += 2 * wait
        one_way += link
        adding += part / parameters.reduction
        lane += 2 * wait + (2 * link / flows + part / parameters.reduction) / count
    passes = math.ceil(count / BLOCK_LANES)
    busiest = max(one_way, adding) + one_way + min(one_way, adding) / count
    return max(busiest + latencies, passes * lane)


def local_allreduce(parameters: Parameters, nbytes: float, ranks: int) -> float:
    """Predict the seconds of an allreduce in the shared memory of one host; 0 for one rank."""
    _check(nbytes, 1, ranks, 1)
    if ranks == 1:
        return 0.0
    moved = nbytes * (ranks - 1) / ranks
    copy = 2 * moved / parameters.local_bandwidth
    return 2 * parameters.local_latency + copy + moved / parameters.reduction


def handshake(parameters: Parameters, hosts: int, ranks_per_host: int = 1) -> float:
    """Predict the seconds until all ranks know that all agree; 0 for one rank."""
    local = parameters.local_latency if ranks_per_host > 1 else 0.0
    return local + recursive_doubling(parameters, 0, hosts)


def exchange_rows(parameters: Parameters, hosts: int, ranks_per_host: int = 1) -> float:
    """Predict the seconds until all ranks know how many rows each has, for an all-gather.

    Bruck's algorithm: in round k all ranks send what 2^k of them have, 8 bytes each, to the rank
    2^k places before; 0 for one rank.
    """
    _check(0, hosts, ranks_per_host, 1)
    ranks, known, seconds = hosts * ranks_per_host, 1, 0.0
    while known < ranks:
        nbytes = 8 * min(known, ranks - known)
        sharing = min(known, ranks_per_host)  # so many ranks of a host send to another one
        local = parameters.local_latency + nbytes / parameters.local_bandwidth
        between = parameters.latency + nbytes * sharing / parameters.bandwidth
        crosses, stays = hosts > 1, hosts == 1 or known < ranks_per_host
        seconds += max(between if crosses else 0.0, local if stays else 0.0)
        known *= 2
    return seconds


def short(parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int = 1) -> float:
    """Predict the seconds of an allreduce whose arrays travel in the messages of the handshake.

    Args:
        parameters: the parameters of the network and the hosts.
        nbytes: the bytes of each rank's array.
        hosts: the number of hosts.
        ranks_per_host: the number of ranks on each host.
    """
    seconds = recursive_doubling(parameters, nbytes, hosts, 1, ranks_per_host)
    if ranks_per_host > 1:
        seconds += parameters.local_latency + nbytes / parameters.local_bandwidth
        seconds += (ranks_per_host - 1) * nbytes / parameters.reduction
    return seconds


def long(parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int = 1) -> float:
    """Predict the seconds of an allreduce in shared memory and by rings between the hosts.

    Arguments are those of `short`.
    """
    part = nbytes / ranks_per_host
    between = ring(parameters, part, hosts, 1, ranks_per_host)
    return _pipeline(parameters, nbytes, hosts, ranks_per_host, between, chunks(part / hosts))


def middle(parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int = 1) -> float:
    """Predict the seconds of an allreduce in shared memory and by halving and doubling.

    Arguments are those of `short`.
    """
    part = nbytes / ranks_per_host
    between = halving_doubling(parameters, part, hosts, 1, ranks_per_host)
    return _pipeline(parameters, nbytes, hosts, ranks_per_host, between, blocks(part, hosts))


def _pipeline(
    parameters: Parameters,
    nbytes: float,
    hosts: int,
    ranks_per_host: int,
    between: float,
    count: int,
) -> float:
    local = local_allreduce(parameters, nbytes, ranks_per_host)
    stages = max(between, local) + min(between, local) / count
    return handshake(parameters, hosts, ranks_per_host) + stages


def longer(parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int = 1) -> float:
    """Predict the seconds of an allreduce by `middle` or `long`, whichever is faster.

    Arguments are those of `short`.
    """
    seconds = long(parameters, nbytes, hosts, ranks_per_host)
    if hosts < LEAST_FOR_HALVING_DOUBLING:
        return seconds
    return min(seconds, middle(parameters, nbytes, hosts, ranks_per_host))


def hierarchical(
    parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int = 1
) -> float:
    """Predict the seconds of an allreduce with `algorithm="auto"`: by the tables.

    Args:
        parameters: the parameters of the network and the hosts.
        nbytes: the bytes of each rank's array.
        hosts: the number of hosts.
        ranks_per_host: the number of ranks on each host.

    Returns:
        Seconds; with one host those of `local_allreduce`.
    """
    if hosts == 1:
        return local_allreduce(parameters, nbytes, ranks_per_host)
    case = parameters, nbytes, hosts, ranks_per_host
    if nbytes <= recursive_doubling_bytes(parameters, hosts, ranks_per_host):
        return short(*case)
    if nbytes <= halving_doubling_bytes(parameters, hosts, ranks_per_host):
        return middle(*case)
    return long(*case)


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
    if algorithm in ("auto", "hierarchical"):
        return hierarchical(parameters, nbytes, hosts, ranks_per_host)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"`algorithm`: expected {', '.join(ALGORITHMS)}, received {algorithm!r}")
    if hosts * ranks_per_host == 1:
        return 0.0
    begin = handshake(parameters, hosts, ranks_per_host)
    return begin + _FLAT[algorithm](parameters, nbytes, hosts, ranks_per_host)


_FLAT: dict[str, Callable[[Parameters, float, int, int], float]] = {
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
}


@functools.lru_cache(maxsize=4096)
def recursive_doubling_bytes(
    parameters: Parameters,
    hosts: int,
    ranks_per_host: int = 1,
    most: int = MAX_RECURSIVE_DOUBLING_BYTES,
) -> int:
    """Return the longest array for which recursive doubling is the fastest.

    Args:
        parameters: of the network and the hosts.
        hosts: how many hosts.
        ranks_per_host: how many ranks each has.
        most: the bytes of the longest array for recursive doubling.

    Returns:
        Bytes of the whole array, from 0 (never faster, or one host) to `most`.
    """
    if hosts < 2:
        return 0

    def wins(nbytes: int) -> bool:
        case = nbytes, hosts, ranks_per_host
        return short(parameters, *case) < longer(parameters, *case)

    # Recursive doubling sends more bytes: once it is slower, it stays slower.
    return most if wins(most) else _last_win(wins, 0, most)


@functools.lru_cache(maxsize=4096)
def halving_doubling_bytes(parameters: Parameters, hosts: int, ranks_per_host: int = 1) -> int:
    """Return the longest array for which halving and doubling is faster than the ring.

    Args:
        parameters: of the network and the hosts.
        hosts: how many hosts.
        ranks_per_host: how many ranks each has.

    Returns:
        Bytes of the whole array: 0 (never faster) to 16 GiB, or ALWAYS.
    """
    if hosts < LEAST_FOR_HALVING_DOUBLING:
        return 0

    def wins(nbytes: int) -> bool:
        case = nbytes, hosts, ranks_per_host
        return middle(parameters, *case) < long(parameters, *case)

    sizes = [1 << k for k in range(10, 35)]
    won = [size for size in sizes if wins(size)]
    if not won:
        return 0
    return ALWAYS if won[-1] == sizes[-1] else _last_win(wins, won[-1], 2 * won[-1])


def bucket_bytes(parameters: Parameters, hosts: int, ranks_per_host: int = 1) -> int:
    """Return the size of the buckets of gradients.

    Shorter buckets leave earlier and overlap better with the backward pass, but each takes the
    latencies of an allreduce, which grow with the number of hosts. So this is the least power of
    two, from MIN_BUCKET_BYTES on, whose allreduce has BUCKET_RATE of the rate of MAX_BUCKET_BYTES.

    Args:
        parameters: of the network and the hosts.
        hosts: how many hosts.
        ranks_per_host: how many ranks each has.
    """
    if hosts == 1:
        return MIN_BUCKET_BYTES

    def rate(nbytes: int) -> float:
        return nbytes / hierarchical(parameters, nbytes, hosts, ranks_per_host)

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


def tables(parameters: Parameters, most: int, ranks_per_host: int = 1) -> Tables:
    """Return the tables for 0, 1, ... `most` hosts.

    Numbers above 64, except `most`, have the sizes of a number at most 3% lower.
    """
    counts = [n if n <= 64 or n == most else _rounded(n) for n in range(most + 1)]
    return Tables(
        [recursive_doubling_bytes(parameters, n, ranks_per_host) for n in counts],
        [halving_doubling_bytes(parameters, n, ranks_per_host) for n in counts],
        bucket_bytes(parameters, most, ranks_per_host) if most > 0 else 0,
    )


def _rounded(hosts: int) -> int:
    step = 1 << (hosts.bit_length() - 6)
    return hosts // step * step


def measure(comm: MPI.Intracomm, hosts: Sequence[int]) -> Parameters:
    """Measure the parameters in a fraction of a second; see `ringar.job.link_probe`. Collective.

    Args:
        comm: an mpi4py communicator of all ranks, without other messages under way.
        hosts: for each rank, the number of its host.

    Returns:
        The parameters, the same on every rank.

    Raises:
        ValueError: `comm` has only one rank, or `hosts` has another length.
    """
    return Parameters(**link_probe.measure(comm, hosts))


def to_dict(parameters: Parameters) -> dict[str, float]:
    """Return parameters as plain data, as in the file."""
    return dataclasses.asdict(parameters)


def save(path: str | Path, parameters: Parameters) -> None:
    """Write parameters to a JSON file, which `load` and RINGAR_COST_MODEL read."""
    Path(path).write_text(json.dumps(to_dict(parameters), indent=1) + "\n")


def from_dict(values: object, where: str) -> Parameters:
    """Return parameters from plain data; `where` names the source in errors.

    Raises:
        ValueError: a key is missing or unknown, or a value is not a number or out of range.
    """
    names = [field.name for field in dataclasses.fields(Parameters)]
    if not isinstance(values, dict):
        raise ValueError(
            f"{where}: expected an object with {', '.join(names)}, received {values!r}"
        )
    if missing := [name for name in names if name not in values]:
        raise ValueError(f"{where}: missing {', '.join(missing)}; expected {', '.join(names)}")
    if unknown := sorted(set(values) - set(names)):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; expected {', '.join(names)}")
    try:
        return Parameters(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def load(path: str | Path) -> Parameters:
    """Read parameters from a JSON file as `save` writes it.

    Raises:
        ValueError: the file cannot be read, is not JSON, or is not an object of five numbers.
    """
    try:
        values = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a file with parameters: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: expected JSON, received something else: {error}") from error
    return from_dict(values, str(path))


def from_environment(environ: Mapping[str, str]) -> Parameters | None:
    """Return the parameters in the file that RINGAR_COST_MODEL names; None if it is not set.

    Raises:
        ValueError: as `load`; the message begins with the variable.
    """
    path = environ.get(VARIABLE, "")
    if not path:
        return None
    try:
        return load(path)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={error}") from error
