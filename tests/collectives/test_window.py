"""Windows: every dtype, parts of different lengths, versions, additions from all sides, errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import ringar
from tests.collectives import common


@pytest.mark.parametrize("dtype", common.MOVED)
def test_get_and_put(dtype: str) -> None:
    """Each rank writes to the part of the next one, and reads all."""
    rank, size = ringar.rank(), ringar.size()
    lengths = [1000 * (r % 3) for r in range(size)]  # 0, 1000, 2000
    kind = common.numpy_dtype(dtype)
    with ringar.Window(lengths[rank], kind, name="moved", chunk_bytes=512) as window:
        assert [window.length(r) for r in range(size)] == lengths
        assert not window.local.astype(bool).any()
        ringar.barrier()
        target = (rank + 1) % size
        window.put(target, common.values(dtype, (lengths[target],), rank))
        ringar.barrier()
        for r in range(size):
            expected = common.values(dtype, (lengths[r],), (r - 1) % size)
            common.assert_same(window.get(r), expected)
            common.assert_same(window.get(r, count=lengths[r] // 2), expected[: lengths[r] // 2])
        common.assert_same(
            np.array(window.local), common.values(dtype, (lengths[rank],), (rank - 1) % size)
        )
        ringar.barrier()


def test_ranges_and_versions() -> None:
    """Writes count in the chunks that they touch; `out` takes what is read."""
    with ringar.Window(100, "float64", name="ranges", chunk_bytes=64) as window:  # 8 in a chunk
        if ringar.rank() == 0:
            window.put(0, np.arange(10.0), start=4)
            window.put(0, np.full((2, 2), -1.0), start=6)
            window.accumulate(0, np.ones(1), start=99)
            assert window.fetch_add(0, 99, 0.5) == 1.0
            out = np.empty((4, 5))
            same, versions = window.get(0, 0, out=out, versions=True)
            assert same is out
            assert versions.tolist() == [2, 2, 0]
            expected = np.zeros(20)
            expected[4:14] = [0, 1, -1, -1, -1, -1, 6, 7, 8, 9]
            common.assert_same(out.ravel(), expected)
            assert [window.version(0, chunk) for chunk in (0, 1, 2, 12)] == [2, 2, 0, 2]
            assert window.get(0, 100).size == window.get(0, 3, 0).size == 0
        ringar.barrier()
        assert window.local[99] == (1.5 if ringar.rank() == 0 else 0.0)


@pytest.mark.parametrize("dtype", common.REDUCIBLE)
def test_accumulate(dtype: str) -> None:
    """Numbers that are exact in each dtype: order does not matter."""
    ways: list[dict[str, bool]] = [{}]
    if np.dtype(common.numpy_dtype(dtype)).itemsize >= 4:
        ways.append({"atomic": True})
    for way in ways:
        with ringar.Window(777, common.numpy_dtype(dtype), name="sum", chunk_bytes=256) as window:
            summand = (np.arange(700) % 5).astype(window.dtype)
            for r in range(ringar.size()):
                for _ in range(3):
                    window.accumulate(r, summand, start=50, **way)
            ringar.barrier()
            expected = np.zeros(777, window.dtype)
            expected[50:750] = (np.arange(700) % 5) * 3 * ringar.size()
            common.assert_same(np.array(window.local), expected, way)
            ringar.barrier()


def test_racy_additions() -> None:
    """Where one rank at a time adds, nothing is lost."""
    with ringar.Window(5000, name="racy") as window:
        for turn in range(ringar.size()):
            if turn == ringar.rank():
                for r in range(ringar.size()):
                    window.accumulate(r, np.ones(5000, np.float32), lock=False)
            ringar.barrier()
        assert (window.local == ringar.size()).all()
        assert window.version(ringar.rank(), 0) == ringar.size()
        ringar.barrier()


WAYS: list[dict[str, bool]] = [{}, {"atomic": True}, {"lock": False}]


@pytest.mark.parametrize("dtype", common.REDUCIBLE)
def test_rows(dtype: str) -> None:
    """All ranks add to rows of all parts, which have other lengths; a row may come twice."""
    kind, rank, size = common.numpy_dtype(dtype), ringar.rank(), ringar.size()
    ways = WAYS if np.dtype(kind).itemsize >= 4 else WAYS[:1]
    numbers = np.array([7, 0, 3, 7])
    for way in ways[: 2 if size > 1 else 3]:
        for width in (None, 1, 5, 40):
            columns = width or 1
            length = 10 * columns + rank  # the last elements are no row
            with ringar.Window(length, kind, name="rows", chunk_bytes=64) as window:
                shape = (4,) if width is None else (4, width)
                values = (np.arange(4 * columns) % 3).astype(window.dtype).reshape(shape)
                for r in range(size):
                    window.scatter_add(r, numbers, values, **way)
                ringar.barrier()
                expected = np.zeros((10, columns), np.int64)
                np.add.at(expected, numbers, size * (np.arange(4 * columns) % 3).reshape(4, -1))
                for r in range(size):
                    rows = window.gather(r, np.arange(9, -1, -1), width)
                    assert rows.shape == ((10,) if width is None else (10, width))
                    answer = expected[::-1].reshape(rows.shape).astype(window.dtype)
                    common.assert_same(rows, answer, (way, width))
                assert not window.local[10 * columns :].astype(bool).any()
                assert window.gather(0, [], width).size == 0
                window.scatter_add(0, [], values[:0])
                ringar.barrier()


@pytest.mark.ranks(4)
def test_a_million_atomic_updates_of_rows() -> None:
    """All ranks change all rows at the same time."""
    rng = np.random.default_rng(ringar.rank())
    with ringar.Window(1000 if ringar.rank() == 0 else 0, "float64", name="sum") as window:
        for _ in range(250):
            window.scatter_add(0, rng.permutation(1000), np.ones(1000), atomic=True)
        ringar.barrier()
        assert (window.get(0) == 250 * ringar.size()).all()
        ringar.barrier()


def test_wide_rows() -> None:
    """Rows that lie across chunks, and across messages; other integers; `out`."""
    width, rows = 70_001, np.array([2, 0], np.uint8)
    with ringar.Window(3 * width if ringar.rank() == 0 else 0, name="wide") as window:
        last = ringar.size() - 1
        values = np.arange(2 * width, dtype=np.float32).reshape(2, width) % 1000
        if ringar.rank() == last:
            window.scatter_add(0, rows, values)
            before, after = values, values + np.float32(0.1)
            for way in WAYS:
                now = window.update(0, rows.tolist(), before, after, **way)
                common.assert_same(now, after)
                before, after = after, after * np.float32(1.1)
            out = np.empty((2, width), np.float32)
            assert window.gather(0, rows, width, out) is out
            common.assert_same(out, before)
        ringar.barrier()
        if ringar.rank() == 0:
            assert not window.local[width : 2 * width].any()


def test_updates() -> None:
    """Each rank moves its own elements exactly, and all move the same ones together."""
    rank, size = ringar.rank(), ringar.size()
    for way in WAYS[:2]:
        with ringar.Window(100 * size if rank == 0 else 0, "float64", name="moved") as window:
            places = np.arange(rank, 100 * size, size)
            serial = np.zeros(100)
            for step in range(20):
                before = window.gather(0, places)
                common.assert_same(before, serial)
                serial = serial / 3 + np.sin(places + step)
                common.assert_same(window.update(0, places, before, serial, **way), serial)
            ringar.barrier()
        with ringar.Window(8 if rank == 0 else 0, "int64", name="counted") as window:
            increments = np.array([1, 0, 2, 0])
            for _ in range(200):
                before = window.gather(0, [0, 1], 4)
                now = window.update(0, [0, 1], before, before + increments, **way)
                assert (now >= before + increments).all()
            ringar.barrier()
            assert window.get(0).tolist() == 2 * [200 * size, 0, 400 * size, 0]
            ringar.barrier()


def test_threads_draw_numbers() -> None:
    """No two threads of any rank get the same one."""
    numbers: list[list[int]] = [[], []]
    with ringar.Window(1 if ringar.rank() == 0 else 0, "int64", name="counter") as window:

        def draw(draws: list[int]) -> None:
            draws.extend(int(window.fetch_add(0, 0, 1)) for _ in range(500))

        threads = [threading.Thread(target=draw, args=(draws,)) for draws in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for draws in numbers:
            assert draws == sorted(draws)
        everybody = ringar.allgather(np.array(numbers[0] + numbers[1]))
        assert sorted(everybody.tolist()) == list(range(1000 * ringar.size()))


@pytest.mark.ranks(3, 4)
def test_process_sets() -> None:
    """Ranks are those of the set; others take no part."""
    pair = ringar.add_process_set([2, 0])
    if pair.included():
        with ringar.Window(pair.rank() + 1, "int32", pair, name="pair") as window:
            assert [window.length(0), window.length(1)] == [1, 2]
            window.put(1 - pair.rank(), np.array([7], np.int32))
            ringar.barrier(process_set=pair)
            assert window.local[0] == 7
    ringar.remove_process_set(pair)


def refused(function: Callable[[], Any], *texts: str) -> None:
    with pytest.raises(ringar.errors.MismatchError) as raised:
        function()
    for text in (f"rank {ringar.rank()} | ", *texts):
        assert text in str(raised.value)


def test_errors_name_the_numbers() -> None:
    last, three = ringar.size() - 1, np.ones(3, np.float32)
    with ringar.Window(10, name="w") as window:
        for rank in (-1, last + 1):
            received = f"expected a rank of the process set from 0 to {last}"
            refused(partial(window.put, rank, three), received, str(rank))
            refused(partial(window.length, rank), received, str(rank))
        outside = (
            'put in window "w": expected elements among the 10 of rank 0, received 3 from 8 on'
        )
        refused(lambda: window.put(0, three, start=8), outside)
        refused(lambda: window.get(0, -1, 2), "received 2 from -1 on")
        refused(lambda: window.get(0, 11), "received -1 from 11 on")
        refused(lambda: window.fetch_add(0, 10, 1), "fetch_add", "received 1 from 10 on")
        refused(lambda: window.version(0, 1), "version", "among the 10")
        refused(lambda: window.put(0, np.ones(3)), "`array` of dtype float32", "dtype float64")
        refused(lambda: window.put(0, np.ma.array(three)), "`array` without a mask")
        refused(lambda: window.get(0, 0, 4, out=three), "`out` of 4 elements", "3 elements")
        refused(lambda: window.get(0, out=np.ones((3, 3), np.float32).T), "C-contiguous")
    refused(lambda: window.get(0, 0, 1), "expected an open window")
    window.close()
    with ringar.Window(4, "float16", name="halves") as window:
        refused(lambda: window.accumulate(0, three.astype("float16"), atomic=True), "float16")
    with ringar.Window(4, "bool", name="flags") as window:
        refused(lambda: window.accumulate(0, three.astype(bool)), "for an addition", "bool")


def test_errors_name_the_rows() -> None:
    last, two = ringar.size() - 1, np.ones((2, 3), np.float32)
    with ringar.Window(10, name="w") as window:
        outside = 'in window "w": expected rows among the 3 of width 3 of rank 0, received row'
        refused(lambda: window.gather(0, [0, 3], 3), f"gather {outside} 3 at index 1")
        refused(lambda: window.scatter_add(0, [-1, 0], two), f"scatter_add {outside} -1 at index 0")
        refused(lambda: window.update(0, [0, 9], two, two), f"update {outside} 9 at index 1")
        refused(lambda: window.gather(last + 1, [0]), f"from 0 to {last}, received {last + 1}")
        refused(lambda: window.gather(0, [0], 0), "rows of at least one element", "width of 0")
        refused(lambda: window.gather(0, [0.5]), "`rows` of integers", "float64")
        refused(lambda: window.gather(0, [0], 3, out=two), "`out` of 3 elements", "6 elements")
        refused(lambda: window.scatter_add(0, [0, 1, 2, 0], two), "each of 4 rows", "6 elements")
        refused(lambda: window.scatter_add(0, [0, 1], two.astype("int8")), "dtype float32", "int8")
        refused(lambda: window.scatter_add(0, [0, 1], np.ma.array(two)), "`values` without a mask")
        refused(lambda: window.update(0, [0, 1], two, two[:1]), "`after` of 6", "3 elements")
        assert not window.local.any()
    refused(lambda: window.gather(0, [0]), "expected an open window")
    with ringar.Window(4, "float16", name="halves") as window:
        half = np.ones(1, np.float16)
        refused(lambda: window.scatter_add(0, [0], half, atomic=True), "float16")
        refused(lambda: window.update(0, [0], half, half), "for an update", "float16")


def test_all_ranks_must_agree() -> None:
    """On the dtype, the chunks and the name; and each rank's own arguments must be good."""
    rank = ringar.rank()
    refused(lambda: ringar.Window(4, name="w", chunk_bytes=100), "multiple of 64", "received 100")
    refused(lambda: ringar.Window(-1, name="w"), "from 0 to", "received -1")
    if ringar.size() == 1:
        return
    refused(lambda: ringar.Window(4, "int32" if rank == 1 else "int64", name="w"), "int32", "int64")
    refused(lambda: ringar.Window(4, name="one" if rank == 1 else "w"), '"one (float32', '"w (')
    refused(lambda: ringar.Window(1 << 40 if rank == 1 else 4, name="w"), "rank 1", "of a window")
    with ringar.Window(4, name="w") as window:
        assert window.get(rank).sum() == 0


def test_shutdown_closes_windows() -> None:
    window = ringar.Window(8, name="left open")
    local = window.local
    local[:] = 3
    ringar.shutdown()
    ringar.init()
    with pytest.raises(ringar.errors.NotInitializedError, match="it was shut down"):
        window.get(0)
    window.close()
    assert (local == 3).all()
    with ringar.Window(8, name="anew") as again:
        assert not again.local.any()
