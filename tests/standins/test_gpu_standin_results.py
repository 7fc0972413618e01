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
    wide_dtype = np.float32 if dtype.itemsize == 2 else dtype
    stack = np.stack(inputs).astype(wide_dtype)
    if op in ("sum", "avg"):
        total = stack.sum(axis=0, dtype=wide_dtype)
        if op == "sum":
            return total.astype(dtype)
        return (total // len(inputs) if dtype.kind in "iu" else total / len(inputs)).astype(dtype)
    reduction: Callable[..., np.ndarray] = getattr(np, op)
    return reduction(stack, axis=0).astype(dtype)


def every_collective(member: Rank, number: int) -> dict[str, np.ndarray]:
    """The results of a rank, by name."""
    dtype, n = DTYPES[number], size(COUNT)
    block, root = values(member.rank, dtype), member.size - 1
    results = {}
    for name, op in OPS.items():
        results[name] = np.zeros_like(block)
        member.run("ncclAllReduce", block, results[name], n, number, op)
    results["in place"] = block.copy()
    member.run("ncclAllReduce", results["in place"], results["in place"], n, number, 0)

    factor = np.array([3], dtype)
    scaled = member.factor(factor, number)
    factor[0] = 0  # it was read at once
    results["scaled"] = np.zeros_like(block)
    member.run("ncclAllReduce", block, results["scaled"], n, number, scaled)
    member.gpu.ncclRedOpDestroy(scaled, member.communicator)

    results["reduce"] = np.zeros_like(block)
    member.run("ncclReduce", block, results["reduce"], n, number, 0, root)
    blocks = np.concatenate([values(member.rank + 7 * part, dtype) for part in range(member.size)])
    results["scatter"] = np.zeros_like(block)
    member.run("ncclReduceScatter", blocks, results["scatter"], n, number, 0)
    results["gather"] = np.zeros_like(blocks)
    member.run("ncclAllGather", block, results["gather"], n, number)
    results["broadcast"] = np.zeros_like(block)
    member.run("ncclBroadcast", block, results["broadcast"], n, number, root)

    results["alltoall"] = np.zeros_like(blocks)
    member.gpu.ncclGroupStart()
    for peer in reversed(range(member.size)):  # each rank in another order than that of its peers
        to = (peer + member.rank) % member.size
        source, target = (address(array, to * COUNT) for array in (blocks, results["alltoall"]))
        assert member.call("ncclSend", source, n, number, to) == 0
        assert member.call("ncclRecv", target, n, number, to) == 0
    member.end_group()
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("number", range(len(DTYPES)), ids=map(str, DTYPES))
def test_collectives(gpu: Library, ranks: int, number: int) -> None:
    dtype = DTYPES[number]
    blocks = [values(rank, dtype) for rank in range(ranks)]
    block_rows = [
        [values(rank + 7 * part, dtype) for part in range(ranks)] for rank in range(ranks)
    ]
    for rank, results in enumerate(
        on_ranks(gpu, ranks, lambda member: every_collective(member, number))
    ):
        answers = {name: expected(name, blocks) for name in OPS}
        answers["in place"] = answers["sum"]
        answers["scaled"] = expected("sum", [block * np.array(3, dtype) for block in blocks])
        answers["reduce"] = answers["sum"] if rank == ranks - 1 else np.zeros(COUNT, dtype)
        answers["scatter"] = expected("sum", [block_rows[other][rank] for other in range(ranks)])
        answers["gather"] = np.concatenate(blocks)
        answers["broadcast"] = blocks[-1]
        answers["alltoall"] = np.concatenate([block_rows[other][rank] for other in range(ranks)])
        for name, result in results.items():
            np.testing.assert_array_equal(result, answers[name], err_msg=f"{name}, rank {rank}")


@pytest.mark.parametrize("number", [6, 9], ids=["float16", "bfloat16"])
def test_halves_are_rounded_to_nearest_even(gpu: Library, number: int) -> None:
    dtype, rng = DTYPES[number], np.random.default_rng(5)
    inputs = [np.arange(1 << 16, dtype=np.uint16).view(dtype), None]
    inputs[1] = rng.permutation(inputs[0])
    with np.errstate(all="ignore"):
        total = (inputs[0].astype(np.float32) + inputs[1].astype(np.float32)).astype(dtype)

    def work(member: Rank) -> np.ndarray:
        result = np.zeros_like(total)
        member.run("ncclAllReduce", inputs[member.rank], result, size(1 << 16), number, 0)
        return result

    for result in on_ranks(gpu, 2, work):
        np.testing.assert_array_equal(result.astype(np.float32), total.astype(np.float32))


def test_long_arrays_and_parts_of_arrays_in_place(gpu: Library) -> None:
    count = 150_001  # more than one piece, and many slots
    inputs = [values(rank, np.dtype("float64"), 2 * count) for rank in range(2)]

    def work(member: Rank) -> tuple[np.ndarray, np.ndarray]:
        scattered, gathered = inputs[member.rank].copy(), inputs[member.rank].copy()
        scatter, gather = (address(array, member.rank * count) for array in (scattered, gathered))
        member.gpu.ncclGroupStart()
        assert member.call("ncclReduceScatter", scattered, scatter, size(count), 8, 0) == 0
        assert member.call("ncclAllGather", gather, gathered, size(count), 8) == 0
        member.end_group()
        return scattered[member.rank * count :][:count], gathered

    results = on_ranks(gpu, 2, work)
    total = inputs[0] + inputs[1]
    for rank, (scattered, gathered) in enumerate(results):
        np.testing.assert_array_equal(scattered, total[rank * count :][:count])
        np.testing.assert_array_equal(gathered[:count], inputs[0][:count])
        np.testing.assert_array_equal(gathered[count:], inputs[1][count:])


def test_messages_between_some_ranks(gpu: Library) -> None:
    def work(member: Rank) -> list[int]:
        first, second = np.array([member.rank + 1], np.int32), np.array([-member.rank], np.int32)
        received = np.zeros(2, np.int32)
        if member.rank == 2:
            return []  # takes no part
        member.gpu.ncclGroupStart()
        for data, place in ((first, 0), (second, 1)):  # in order
            assert member.call("ncclSend", data, size(1), 2, 1 - member.rank) == 0
            assert (
                member.call("ncclRecv", address(received, place), size(1), 2, 1 - member.rank) == 0
            )
        member.end_group()
        return received.tolist()

    assert on_ranks(gpu, 3, work) == [[2, -1], [1, 0], []]


def test_a_split(gpu: Library) -> None:
    def work(member: Rank) -> float:
        child, color = c_void_p(1), member.rank % 2 if member.rank < 3 else -1
        code = gpu.code(
            "ncclCommSplit", member.communicator, color, -member.rank, byref(child), None
        )
        assert code == 7
        member.ready()
        if color < 0:
            assert child.value is None
            return 0
        member.communicator, parent = child, member.communicator
        result = np.array([member.rank], np.float32)
        member.run("ncclBroadcast", result, result, size(1), 7, 0)
        gpu.ncclCommDestroy(child)
        member.communicator = parent
        return float(result[0])

    assert on_ranks(gpu, 4, work) == [2, 1, 2, 0]  # the highest rank has the lowest key
