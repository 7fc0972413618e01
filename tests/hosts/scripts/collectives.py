"""Every collective, on NumPy arrays, wherever its ranks are; each scenario is written down.

Sums and products here are exact in any order and any dtype, so that results are compared bit for
bit whichever algorithm has made them. The ways to call a collective from TensorFlow are the
business of tests/collectives, which run on hosts, too.
"""

from __future__ import annotations

import hashlib
import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import mpi4py
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common, test_window
from tests.faults.job import attempt, record, works
from tests.hosts.traffic import bytes_between_hosts

mpi4py.rc.initialize = False  # as Horovod's documentation advises, which initializes MPI, too

ALGORITHMS = (None, "ring", "recursive_doubling", "halving_doubling", "hierarchical")
SHAPES = [(), (0,), (1,), (2,), (7,), (3, 0, 2), (5, 3, 7), (1023,), (40_001,)]
LARGE = 1_000_003


def exact(dtype: str, shape: Sequence[int], rank: int, op: ringar.ReduceOp) -> np.ndarray:
    """Whole numbers so small that 8 ranks' sum or product of them is exact in float16."""
    rng = np.random.default_rng([rank, len(shape), *shape])
    numbers = [1, 2] if op is ringar.Product or dtype == "uint8" else [-3, -2, -1, 0, 1, 2, 3]
    return np.asarray(rng.choice(numbers, shape)).astype(common.numpy_dtype(dtype))


def of_all(dtype: str, shape: Sequence[int], op: ringar.ReduceOp) -> list[np.ndarray]:
    return [exact(dtype, shape, r, op) for r in range(ringar.size())]


def place() -> None:
    """Writes down where this rank is."""
    ranks = (ringar.rank(), ringar.size(), ringar.local_rank(), ringar.local_size())
    record(
        "where", kinds=[], message=repr((socket.gethostname(), *ranks, ringar.cross_rank(),
                                         ringar.cross_size())), seconds=0.0
    )  # fmt: skip


def allreduce(algorithm: str | None) -> Callable[[], None]:
    def run() -> None:
        for dtype in common.REDUCIBLE:
            for op in common.OPS:
                if op is ringar.Average and dtype not in common.FLOATING:
                    continue
                inputs = [of_all(dtype, shape, op) for shape in SHAPES]
                inputs_of_rank = [arrays[ringar.rank()] for arrays in inputs]
                expected = [common.reduced(op, arrays) for arrays in inputs]
                together = ringar.grouped_allreduce(inputs_of_rank, op, algorithm=algorithm)
                common.assert_all_same(together, expected, (dtype, op))
                for i in (0, 1, 4, len(SHAPES) - 1):
                    total = ringar.allreduce(inputs_of_rank[i], op, algorithm=algorithm)
                    common.assert_same(total, expected[i], (dtype, op, SHAPES[i]))

    return run


def large(algorithm: str | None) -> Callable[[], None]:
    """Many chunks; and random numbers, of which all ranks get the same bits."""

    def run() -> None:
        inputs = of_all("float32", (LARGE,), ringar.Sum)
        result = ringar.allreduce(inputs[ringar.rank()], ringar.Sum, algorithm=algorithm)
        common.assert_same(result, common.reduced(ringar.Sum, inputs), algorithm)
        inputs = common.of_all_ranks("float32", (300_001,))
        result = ringar.allreduce(inputs[ringar.rank()], algorithm=algorithm)
        total = np.mean(np.asarray(inputs, np.float64), axis=0)
        np.testing.assert_allclose(result, total, rtol=1e-5, atol=1e-6)
        digests = ringar.allgather_object(hashlib.sha256(result.tobytes()).hexdigest())
        assert len(set(digests)) == 1, digests

    return run


def narrow_allreduce(algorithm: str | None) -> Callable[[], None]:
    """float32 that travels as float16 or bfloat16: exact where they are, and near elsewhere."""

    def run() -> None:
        for compression, precision in (
            (ringar.Compression.fp16, 2.0**-11),
            (ringar.Compression.bf16, 2.0**-8),
        ):
            options: dict[str, Any] = {"compression": compression, "algorithm": algorithm}
            inputs = of_all("float32", (40_001,), ringar.Sum)
            result = ringar.allreduce(inputs[ringar.rank()], ringar.Sum, **options)
            common.assert_same(result, common.reduced(ringar.Sum, inputs), compression)
            inputs = common.of_all_ranks("float32", (40_001,))
            result = ringar.allreduce(inputs[ringar.rank()], ringar.Sum, **options)
            error = np.abs(result - np.sum(np.asarray(inputs, np.float64), axis=0)).max()
            # Each of the size - 1 hops and the way back rounds a sum of at most 2 per rank.
            assert error <= precision * 2 * ringar.size() * ringar.size(), (compression, error)
            digests = ringar.allgather_object(hashlib.sha256(result.tobytes()).hexdigest())
            assert len(set(digests)) == 1, digests

    return run


def reducescatter(process_set: ringar.ProcessSet | None = None) -> None:
    members = process_set.ranks if process_set else list(range(ringar.size()))
    n, place = len(members), members.index(ringar.rank())
    for dtype, op in itertools.product(common.REDUCIBLE, common.OPS):
        if op is ringar.Average and dtype not in common.FLOATING:
            continue
        for rows in (0, 1, n - 1, 2 * n + 1, 3000 if op is ringar.Sum else 30):
            arrays = [exact(dtype, (rows, 3), r, op) for r in members]
            result = ringar.reducescatter(arrays[place], op, process_set=process_set)
            # The first ranks get one row more where they cannot be shared out evenly.
            parts = np.array_split(common.reduced(op, arrays), n)
            common.assert_same(result, parts[place], (dtype, op, rows))


def allgather(process_set: ringar.ProcessSet | None = None) -> None:
    members = process_set.ranks if process_set else list(range(ringar.size()))
    for dtype in common.MOVED:
        for rows in ([1] * len(members), [3 * i for i in range(len(members))],
                     [20_000 * (i % 2) + 1 for i in range(len(members))]):  # fmt: skip
            arrays = [common.values(dtype, (rows[i], 2), r) for i, r in enumerate(members)]
            array = arrays[members.index(ringar.rank())]
            result = ringar.allgather(array, process_set=process_set)
            common.assert_same(result, np.concatenate(arrays), (dtype, rows))


def broadcast(process_set: ringar.ProcessSet | None = None) -> None:
    members = process_set.ranks if process_set else list(range(ringar.size()))
    for root in members:
        for shape in [(), (0,), (5,), (70_001, 3)]:
            arrays = {r: common.values("float64", shape, r) for r in members}
            result = ringar.broadcast(arrays[ringar.rank()], root, process_set=process_set)
            common.assert_same(result, arrays[root], (root, shape))


def alltoall(process_set: ringar.ProcessSet | None = None) -> None:
    members = process_set.ranks if process_set else list(range(ringar.size()))
    n, me = len(members), members.index(ringar.rank())
    for scale in (0, 1, 7000):
        # What place i sends to place j; none for some.
        splits = [[scale * ((i + 2 * j) % (n + 1)) for j in range(n)] for i in range(n)]
        inputs = [common.values("int32", (sum(row), 2), r) for row, r in zip(splits, members)]  # noqa: B905
        received = ringar.alltoall(inputs[me], splits=splits[me], process_set=process_set)
        result = received[0] if isinstance(received, tuple) else received
        expected = []
        for i in range(n):
            start = sum(splits[i][:me])
            expected.append(inputs[i][start : start + splits[i][me]])
        common.assert_same(result, np.concatenate(expected), scale)


def grouped() -> None:
    """Several arrays of several dtypes at once."""
    ranks = range(ringar.size())
    shapes = [(7, 2), (0, 3), (3001,), (ringar.size(), 4)]
    dtypes = ("float32", "int64", "float32", "uint8")
    of_ranks = [
        [exact(dtype, shape, r, ringar.Sum) for dtype, shape in zip(dtypes, shapes, strict=True)]
        for r in ranks
    ]
    inputs, of_arrays = of_ranks[ringar.rank()], list(zip(*of_ranks, strict=True))
    totals = [common.reduced(ringar.Sum, list(arrays)) for arrays in of_arrays]
    parts = [np.array_split(total, ringar.size())[ringar.rank()] for total in totals]
    common.assert_all_same(ringar.grouped_reducescatter(inputs, ringar.Sum), parts, "reducescatter")
    wholes = [np.concatenate(arrays) for arrays in of_arrays]
    common.assert_all_same(ringar.grouped_allgather(inputs), wholes, "allgather")
    last = ringar.size() - 1
    common.assert_all_same(ringar.grouped_broadcast(inputs, last), of_ranks[last], "broadcast")
    variables = [tf.Variable(array) for array in inputs]
    ringar.broadcast_variables(variables, last)
    common.assert_all_same([v.numpy() for v in variables], of_ranks[last], "broadcast_variables")


def barrier() -> None:
    for _ in range(20):
        ringar.barrier()


def objects() -> None:
    everyone = ringar.allgather_object({"rank": ringar.rank(), "pad": "x" * 1000 * ringar.rank()})
    assert [report["rank"] for report in everyone] == list(range(ringar.size()))
    last = ringar.size() - 1
    assert ringar.broadcast_object((ringar.rank(), [1.5]), root_rank=last) == (last, [1.5])


def groups() -> list[list[int]]:
    """Sets that span hosts, of one host alone, of one rank, and all in another order."""
    ranks = list(range(ringar.size()))
    hosts = ringar.allgather_object(socket.gethostname())
    of_first = [r for r in ranks if hosts[r] == hosts[0]]
    firsts = [hosts.index(name) for name in dict.fromkeys(hosts)]
    return [[ranks[-1], 0], of_first, firsts[::-1], [ranks[-1]], ranks[::-1], ranks[1:]]


def process_sets() -> None:
    collectives = (reducescatter, allgather, broadcast, alltoall)
    for ranks in groups():
        group = ringar.add_process_set(ranks)
        if group.included():
            for collective in collectives:
                collective(group)
            for algorithm in ALGORITHMS:
                arrays = [exact("float32", (1001,), r, ringar.Sum) for r in ranks]
                result = ringar.allreduce(
                    arrays[group.rank()], ringar.Sum, process_set=group, algorithm=algorithm
                )
                common.assert_same(result, common.reduced(ringar.Sum, arrays), (ranks, algorithm))
        ringar.remove_process_set(group)


def sets_in_turn() -> None:
    """Two halves and all: ranks wait for each other across hosts in the order of the program."""
    sets = [ringar.add_process_set(ranks) for ranks in groups()[:3]]
    for turn in range(30):
        for process_set in [*sets, ringar.global_process_set]:
            if process_set.included():
                array = np.full(10 + 997 * (turn % 3), turn + ringar.rank(), np.int64)
                total = ringar.allreduce(array, ringar.Sum, process_set=process_set)
                assert (total == sum(turn + r for r in process_set.ranks)).all()
    for process_set in sets:
        ringar.remove_process_set(process_set)


def messages() -> None:
    """From every rank to every other one, short and long, and of a set that spans hosts."""
    size, rank = ringar.size(), ringar.rank()
    peers = [r for r in range(size) if r != rank]
    for turn, length in enumerate([0, 1, 300, 70_001, 5, 70_001, 2, 1000] * 3):
        dtype = common.MOVED[turn % len(common.MOVED)]
        arrays = common.of_all_ranks(dtype, (length + 1, 2), turn)
        for to in peers:
            # Each receiver gets its own part of it.
            ringar.send(arrays[rank][: length + 1 - to % 2], to, name=f"turn {turn}")
        for source in peers[::-1]:
            expected = arrays[source][: length + 1 - rank % 2]
            spec = tf.TensorSpec([None, 2], expected.dtype)
            received = ringar.recv(spec, source, name=f"turn {turn}")
            common.assert_same(received, expected, (turn, source))
    large_arrays = common.of_all_ranks("float32", (LARGE,))
    ringar.send(large_arrays[rank], (rank + 1) % size)
    received = ringar.recv(tf.TensorSpec([LARGE]), (rank - 1) % size)
    common.assert_same(received, large_arrays[rank - 1])
    for ranks in groups()[:3]:
        group = ringar.add_process_set(ranks)
        place = group.rank()
        if group.included() and group.size() > 1:
            ringar.send(np.array([place]), (place + 1) % group.size(), process_set=group)
            spec = tf.TensorSpec([1], tf.int64)
            message = ringar.recv(spec, (place - 1) % group.size(), process_set=group)
            assert message.numpy().tolist() == [(place - 1) % group.size()]
        ringar.remove_process_set(group)


def messages_in_a_function() -> None:
    """Both ways around a ring, beside a collective; all receive before they send."""
    size, rank = ringar.size(), ringar.rank()
    after, before = (rank + 1) % size, (rank - 1) % size

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        received = ringar.recv(tf.TensorSpec([None]), before, name="right")
        ringar.send(x, after, name="right")
        total = ringar.allreduce(received)
        ringar.send(total, before, name="left")
        return [total, ringar.recv(tf.TensorSpec([None]), after, name="left")]

    for turn in range(20):
        length = [3, 100_000, 5000][turn % 3]
        for result in step(tf.fill([length], float(rank + turn))):
            np.testing.assert_allclose(result, np.full(length, turn + (size - 1) / 2), rtol=1e-6)


def refused_messages() -> None:
    """The sender is told when it sends again; at most one more is under way until then."""
    rank, last = ringar.rank(), ringar.size() - 1
    count, text = 0, ""
    spec = tf.TensorSpec([1], tf.int64)
    try:
        if rank == 0:
            ringar.send(np.ones(3), last, name="wrong")
            while True:
                ringar.send(np.array([count]), last)
                count += 1
        if rank == last:
            ringar.recv(spec, 0)
    except (ringar.errors.MismatchError, tf.errors.InvalidArgumentError) as error:
        text = str(error)
    if rank in (0, last):
        assert f'rank 0: send "wrong" of float64[3]\n  rank {last}: recv of int64[1]' in text, text
    count = ringar.broadcast_object(count)
    assert count <= 1
    if rank == 0:
        ringar.send(np.array([count]), last)
    if rank == last:
        for i in range(count + 1):
            assert ringar.recv(spec, 0).numpy().tolist() == [i]


def windows() -> None:
    """As on one host; and parts of many messages, from all sides at once."""
    test_window.test_get_and_put("float32")
    test_window.test_ranges_and_versions()
    test_window.test_accumulate("int64")
    test_window.test_threads_draw_numbers()
    test_window.test_rows("int64")
    test_window.test_wide_rows()
    test_window.test_updates()
    size, rank = ringar.size(), ringar.rank()
    for chunk_bytes in (64, 32768, 1 << 20):
        with ringar.Window(LARGE, name="large", chunk_bytes=chunk_bytes) as window:
            for r in range(size):
                window.accumulate(r, common.values("float32", (LARGE,), r).round(), start=0)
            ringar.barrier()
            for r in range(size):
                expected = common.values("float32", (LARGE,), r).round() * size + 0.0
                common.assert_same(window.get(r), expected, (chunk_bytes, r))
            ringar.barrier()
            window.put((rank + 1) % size, np.full(LARGE - 3, rank, np.float32), start=2)
            ringar.barrier()
            assert (window.local[2:-1] == (rank - 1) % size).all()


def windows_refuse() -> None:
    """Range, rank and dtype; and a window that its rank has closed."""
    test_window.test_errors_name_the_numbers()
    test_window.test_errors_name_the_rows()
    if ringar.cross_size() > 1:
        with pytest.raises(ringar.errors.UnsupportedError, match="expected ranks of one host"):
            ringar.Hogwild("sgd")


def beside_mpi() -> None:
    """The user's own code may use mpi4py at the same time, from another thread where MPI may."""
    from mpi4py import MPI

    if not MPI.Is_initialized():  # ringar initializes it in jobs of MPI
        return  # a job of ringarrun on one host
    world, count = MPI.COMM_WORLD, 40
    totals: list[int] = []

    def exchange() -> None:
        for i in range(count):
            totals.append(world.allreduce(i + world.rank))
            world.sendrecv(b"x" * 100_000, (world.rank + 1) % world.size)

    thread = threading.Thread(target=exchange)
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        thread.start()
    for i in range(count):
        total = ringar.allreduce(np.full(1 + 3001 * (i % 2), i + ringar.rank()), ringar.Sum)
        assert (total == sum(i + r for r in range(ringar.size()))).all()
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        thread.join()
    else:
        exchange()
    assert totals == [sum(i + r for r in range(world.size)) for i in range(count)]


def in_a_function() -> None:
    """Several at once, as a training step runs them, plain and compiled."""
    count, ranks = 12, range(ringar.size())

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [ringar.allreduce(x * (i + 1), ringar.Sum, name=f"t{i}") for i in range(count)]

    x = np.full(30_001, ringar.rank() + 1, np.float32)
    for compiled in (False, True):
        results = tf.function(step, jit_compile=compiled)(tf.constant(x))
        for i, result in enumerate(results):
            assert (result.numpy() == (i + 1) * sum(r + 1 for r in ranks)).all(), (compiled, i)


def main() -> None:
    ringar.init(deadline=30, stall_warning=10)
    attempt("place", place)
    for algorithm in ALGORITHMS:
        attempt(f"allreduce, {algorithm or 'auto'}", allreduce(algorithm))
        attempt(f"large allreduce, {algorithm or 'auto'}", large(algorithm))
        attempt(f"narrow allreduce, {algorithm or 'auto'}", narrow_allreduce(algorithm))
    for collective in (reducescatter, allgather, broadcast, alltoall):
        attempt(collective.__name__, collective)
    for function in (
        grouped,
        barrier,
        objects,
        process_sets,
        sets_in_turn,
        messages,
        messages_in_a_function,
        refused_messages,
        windows,
        windows_refuse,
        beside_mpi,
        in_a_function,
    ):
        attempt(function.__name__, function)
    for algorithm in ("ring", "hierarchical"):
        attempt(f"bytes, {algorithm}", bytes_between_hosts(algorithm))
    narrow_bytes = bytes_between_hosts("hierarchical", compression=ringar.Compression.fp16)
    attempt("bytes, hierarchical, narrow", narrow_bytes)
    attempt("works at the end", works)
    ringar.shutdown()


if __name__ == "__main__":
    main()
