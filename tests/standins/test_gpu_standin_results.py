"""The stand-in's collectives compute what NCCL's do, compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_void_p

import numpy as np
import pytest

from tests.standins.gpu_calls import DTYPES, OPS, Library, Rank, address, on_ranks, size

pytestmark = [pytest.mark.job, pytest.mark.slow]

COUNT = 37


def values(rank: int, dtype: np.dtype, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(rank).integers(1, 5, count).astype(dtype)


def expected(op: str, inputs: list[np.ndarray]) -> np.ndarray:
    dtype = inputs[0].dtype
    wide = np.float32 if dtype.itemsize == 2 else dtype
    stack = np.stack(inputs).astype(wide)
    if op in ("sum", "avg"):
        total = stack.sum(axis=0, dtype=wide)
        if op == "sum":
            return total.astype(dtype)
        return (total // len(inputs) if dtype.kind in "iu" else total / len(inputs)).astype(dtype)
    reduction: Callable[..., np.ndarray] = getattr(np, op)
    return reduction(stack, axis=0).astype(dtype)


def every_collective(its: Rank, number: int) -> dict[str, np.ndarray]:
    """The results of a rank, by name."""
    dtype, n = DTYPES[number], size(COUNT)
    own, root = values(its.rank, dtype), its.size - 1
    results = {}
    for name, op in OPS.items():
        results[name] = np.zeros_like(own)
        its.run("ncclAllReduce", own, results[name], n, number, op)
    results["in place"] = own.copy()
    its.run("ncclAllReduce", results["in place"], results["in place"], n, number, 0)

    factor = np.array([3], dtype)
    scaled = its.factor(factor, number)
    factor[0] = 0  # it was read at once
    results["scaled"] = np.zeros_like(own)
    its.run("ncclAllReduce", own, results["scaled"], n, number, scaled)
    its.gpu.ncclRedOpDestroy(scaled, its.communicator)

    results["reduce"] = np.zeros_like(own)
    its.run("ncclReduce", own, results["reduce"], n, number, 0, root)
    many = np.concatenate([values(its.rank + 7 * part, dtype) for part in range(its.size)])
    results["scatter"] = np.zeros_like(own)
    its.run("ncclReduceScatter", many, results["scatter"], n, number, 0)
    results["gather"] = np.zeros_like(many)
    its.run("ncclAllGather", own, results["gather"], n, number)
    results["broadcast"] = np.zeros_like(own)
    its.run("ncclBroadcast", own, results["broadcast"], n, number, root)

    results["alltoall"] = np.zeros_like(many)
    its.gpu.ncclGroupStart()
    for peer in reversed(range(its.size)):  # each rank in another order than that of its peers
        to = (peer + its.rank) % its.size
        sent, received = (address(array, to * COUNT) for array in (many, results["alltoall"]))
        assert its.call("ncclSend", sent, n, number, to) == 0
        assert its.call("ncclRecv", received, n, number, to) == 0
    its.end_group()
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("number", range(len(DTYPES)), ids=map(str, DTYPES))
def test_collectives(gpu: Library, ranks: int, number: int) -> None:
    dtype = DTYPES[number]
    own = [values(rank, dtype) for rank in range(ranks)]
    many = [[values(rank + 7 * part, dtype) for part in range(ranks)] for rank in range(ranks)]
    for rank, results in enumerate(on_ranks(gpu, ranks, lambda its: every_collective(its, number))):
        wanted = {name: expected(name, own) for name in OPS}
        wanted["in place"] = wanted["sum"]
        wanted["scaled"] = expected("sum", [one * np.array(3, dtype) for one in own])
        wanted["reduce"] = wanted["sum"] if rank == ranks - 1 else np.zeros(COUNT, dtype)
        wanted["scatter"] = expected("sum", [many[other][rank] for other in range(ranks)])
        wanted["gather"] = np.concatenate(own)
        wanted["broadcast"] = own[-1]
        wanted["alltoall"] = np.concatenate([many[other][rank] for other in range(ranks)])
        for name, result in results.items():
            np.testing.assert_array_equal(result, wanted[name], err_msg=f"{name}, rank {rank}")


@pytest.mark.parametrize("number", [6, 9], ids=["float16", "bfloat16"])
def test_halves_are_rounded_to_nearest_even(gpu: Library, number: int) -> None:
    dtype, rng = DTYPES[number], np.random.default_rng(5)
    inputs = [np.arange(1 << 16, dtype=np.uint16).view(dtype), None]
    inputs[1] = rng.permutation(inputs[0])
    with np.errstate(all="ignore"):
        wanted = (inputs[0].astype(np.float32) + inputs[1].astype(np.float32)).astype(dtype)

    def work(its: Rank) -> np.ndarray:
        result = np.zeros_like(wanted)
        its.run("ncclAllReduce", inputs[its.rank], result, size(1 << 16), number, 0)
        return result

    for result in on_ranks(gpu, 2, work):
        np.testing.assert_array_equal(result.astype(np.float32), wanted.astype(np.float32))


def test_long_arrays_and_parts_of_arrays_in_place(gpu: Library) -> None:
    count = 150_001  # more than one piece, and many slots
    inputs = [values(rank, np.dtype("float64"), 2 * count) for rank in range(2)]

    def work(its: Rank) -> tuple[np.ndarray, np.ndarray]:
        scattered, gathered = inputs[its.rank].copy(), inputs[its.rank].copy()
        scatter, gather = (address(array, its.rank * count) for array in (scattered, gathered))
        its.gpu.ncclGroupStart()
        assert its.call("ncclReduceScatter", scattered, scatter, size(count), 8, 0) == 0
        assert its.call("ncclAllGather", gather, gathered, size(count), 8) == 0
        its.end_group()
        return scattered[its.rank * count :][:count], gathered

    results = on_ranks(gpu, 2, work)
    total = inputs[0] + inputs[1]
    for rank, (scattered, gathered) in enumerate(results):
        np.testing.assert_array_equal(scattered, total[rank * count :][:count])
        np.testing.assert_array_equal(gathered[:count], inputs[0][:count])
        np.testing.assert_array_equal(gathered[count:], inputs[1][count:])


def test_messages_between_some_ranks(gpu: Library) -> None:
    def work(its: Rank) -> list[int]:
        first, second = np.array([its.rank + 1], np.int32), np.array([-its.rank], np.int32)
        received = np.zeros(2, np.int32)
        if its.rank == 2:
            return []  # takes no part
        its.gpu.ncclGroupStart()
        for data, place in ((first, 0), (second, 1)):  # in order
            assert its.call("ncclSend", data, size(1), 2, 1 - its.rank) == 0
            assert its.call("ncclRecv", address(received, place), size(1), 2, 1 - its.rank) == 0
        its.end_group()
        return received.tolist()

    assert on_ranks(gpu, 3, work) == [[2, -1], [1, 0], []]


def test_a_split(gpu: Library) -> None:
    def work(its: Rank) -> float:
        child, color = c_void_p(1), its.rank % 2 if its.rank < 3 else -1
        code = gpu.code("ncclCommSplit", its.communicator, color, -its.rank, byref(child), None)
        assert code == 7
        its.ready()
        if color < 0:
            assert child.value is None
            return 0
        its.communicator, parent = child, its.communicator
        result = np.array([its.rank], np.float32)
        its.run("ncclBroadcast", result, result, size(1), 7, 0)
        gpu.ncclCommDestroy(child)
        its.communicator = parent
        return float(result[0])

    assert on_ranks(gpu, 4, work) == [2, 1, 2, 0]  # the highest rank has the lowest key
