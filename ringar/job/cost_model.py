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

**Handshake.** Every collective between hosts begins with recursive doubling of a few bytes, which
tells all ranks whether they agree. The arrays of a short allreduce travel in the same messages, so
that the handshake costs nothing extra.

**Hierarchical.** The L ranks of a host reduce in shared memory, each drives its slice of B/L bytes
around the ring between the hosts, and shared memory gathers. The slices share the host's link, so
that B bytes count there, as with one rank per host. The three stages form a pipeline of blocks: the
longest stage counts in full, the others for one block. A short array is reduced by every rank of a
host and then travels whole, L times, by recursive doubling.

The choice is a table made from these formulas (`recursive_doubling_bytes`, `table`). The parameters
are measured at start (`measure`, `ringar.job.link_probe`) or read from the file that
RINGAR_COST_MODEL names. The module needs NumPy alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
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

ALGORITHMS = ("auto", "ring", "recursive_doubling", "hierarchical")
"""Algorithms of an allreduce over several hosts; `ringar.allreduce` explains them."""

MAX_RECURSIVE_DOUBLING_BYTES = 256 * 1024
"""Recursive doubling needs room for a whole message; the native library has this much."""

EAGER_BYTES = 64 * 1024
"""Over TCP, MPI sends a longer message only after the receiver's answer: two more latencies."""

LANES, MIN_CHUNK_BYTES, CHUNK_BYTES = 24, 16384, 64000
"""Chunks of a segment under way, and their least and most bytes: as tf_ops/engine/tuning.cc."""


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
    local = local_allreduce(parameters, nbytes, ranks_per_host)
    blocks = chunks(part / hosts)
    stages = max(between, local) + min(between, local) / blocks
    return handshake(parameters, hosts, ranks_per_host) + stages


def hierarchical(
    parameters: Parameters, nbytes: float, hosts: int, ranks_per_host: int = 1
) -> float:
    """Predict the seconds of an allreduce with `algorithm="auto"`: `short` or `long`, by the table.

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
    limit = recursive_doubling_bytes(parameters, hosts, ranks_per_host)
    return (short if nbytes <= limit else long)(parameters, nbytes, hosts, ranks_per_host)


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
    flat = ring if algorithm == "ring" else recursive_doubling
    begin = handshake(parameters, hosts, ranks_per_host)
    return begin + flat(parameters, nbytes, hosts, ranks_per_host)


def recursive_doubling_bytes(
    parameters: Parameters,
    hosts: int,
    ranks_per_host: int = 1,
    most: int = MAX_RECURSIVE_DOUBLING_BYTES,
) -> int:
    """Return the longest array for which recursive doubling is faster than the ring.

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
        return short(parameters, *case) < long(parameters, *case)

    if wins(most):
        return most
    # Recursive doubling sends more bytes: once it is slower, it stays slower.
    shorter, longer = 0, most
    while longer - shorter > 1:
        middle = (shorter + longer) // 2
        shorter, longer = (middle, longer) if wins(middle) else (shorter, middle)
    return shorter


def table(parameters: Parameters, most: int, ranks_per_host: int = 1) -> list[int]:
    """Return `recursive_doubling_bytes` for 0, 1, ... `most` hosts."""
    return [recursive_doubling_bytes(parameters, n, ranks_per_host) for n in range(most + 1)]


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
