"""What cannot be used, on all ranks or on one; process sets; and that all can go on afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.cupy import device
from ringar.errors import MismatchError, UnsupportedError
from tests.collectives import common
from tests.cupy.collectives.common import Gpu, assert_close
from tests.cupy.collectives.test_order import foreign

NAMES = ("allreduce", "reducescatter", "allgather", "broadcast", "alltoall")


@pytest.fixture
def works(gpu: Gpu) -> Iterator[None]:
    """Afterwards an allreduce does what it should, on the GPU and in host memory."""
    yield
    ones = np.ones(3, np.float32)
    for _ in range(2):
        assert ringar.cupy.allreduce(gpu.put(ones), ringar.Sum).get()[0] == ringar.size()
        assert ringar.allreduce(ones, ringar.Sum)[0] == ringar.size()


# What ranks disagree on.


def of(odd_value: Any, usual_value: Any) -> Any:
    """What rank 1 brings, or the others."""
    return odd_value if ringar.rank() == 1 else usual_value


DISAGREEMENTS: dict[str, Callable[[Gpu, Any], Any]] = {
    "shape": lambda gpu, a: ringar.cupy.allreduce(a[: of(2, 3)]),
    "dtype": lambda gpu, a: ringar.cupy.allreduce(a.astype(of("float64", "float32"))),
    "hidden dtype": lambda gpu, a: ringar.cupy.broadcast(
        gpu.put(np.ones(3, np.uint16)), dtype=of("bfloat16", None)
    ),
    "op": lambda gpu, a: ringar.cupy.allreduce(a, of(ringar.Sum, ringar.Max)),
    "factor": lambda gpu, a: ringar.cupy.allreduce(a, ringar.Sum, prescale_factor=of(2, 3)),
    "name": lambda gpu, a: ringar.cupy.allgather(a, name=of("a", "b")),
    "collective": lambda gpu, a: of(ringar.cupy.allgather, ringar.cupy.alltoall)(a),
    "root": lambda gpu, a: ringar.cupy.broadcast(a, of(0, 1)),
    "tail": lambda gpu, a: ringar.cupy.allgather(of(a[:, :1], a)),
    "group": lambda gpu, a: ringar.cupy.grouped_allreduce([a] * of(2, 3)),
    "splits": lambda gpu, a: ringar.cupy.alltoall(a, of([99, 99], [2] + [1] * (ringar.size() - 1))),
    "scalar": lambda gpu, a: ringar.cupy.allgather(of(gpu.put(np.float32(1)), a)),
    "memory": lambda gpu, a: of(ringar.cupy.allreduce, ringar.allreduce)(of(a, a.get())),
    "memory of a gather": lambda gpu, a: of(ringar.cupy.allgather, ringar.allgather)(
        of(a, a.get())
    ),
}


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("disagreement", DISAGREEMENTS)
def test_ranks_that_disagree(gpu: Gpu, disagreement: str, works: None) -> None:
    array = gpu.put(np.ones((ringar.size() + 1, 3), np.float32))
    with pytest.raises(MismatchError, match=rf"^rank {ringar.rank()} \| "):
        DISAGREEMENTS[disagreement](gpu, array)


@pytest.mark.ranks(2)
def test_out_stays_as_it_was(gpu: Gpu, works: None) -> None:
    array = gpu.put(np.ones(of(2, 3), np.float32))
    with pytest.raises(MismatchError):
        ringar.cupy.allreduce(array, ringar.Sum, out=array)
    assert set(array.get()) == {1.0}


# What no rank can use.


@pytest.mark.parametrize("name", ["reducescatter", "allgather", "alltoall"])
def test_scalars_have_no_rows(gpu: Gpu, name: str, works: None) -> None:
    with pytest.raises(MismatchError, match="at least one dimension, received a scalar"):
        getattr(ringar.cupy, name)(gpu.put(np.float32(1)))


@pytest.mark.parametrize("dtype", ["bool", "complex64", "uint16"])
def test_dtypes_that_cannot_be_reduced(gpu: Gpu, dtype: str, works: None) -> None:
    with pytest.raises(MismatchError, match=f"a dtype that can be reduced .*, received {dtype}"):
        ringar.cupy.allreduce(gpu.put(np.ones(3, dtype)), ringar.Sum)


def test_roots_out_of_range(gpu: Gpu, works: None) -> None:
    for root in (ringar.size(), -1):
        with pytest.raises(MismatchError, match=f"expected a root rank from 0 .* received {root}"):
            ringar.cupy.broadcast(gpu.put(np.ones(3)), root)


@pytest.mark.parametrize("splits", [[], [-1, 4], [7, 7, 7, 7, 7]])
def test_splits_that_cannot_be(gpu: Gpu, splits: list[int], works: None) -> None:
    with pytest.raises(MismatchError, match="splits|split per rank"):
        ringar.cupy.alltoall(gpu.put(np.ones(3)), splits)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_on_a_gpu(gpu: Gpu, name: str, works: None) -> None:
    function = getattr(ringar.cupy, name)
    for argument in (np.ones(3), np.float32(1), tf.ones(3), [1.0], None):
        with pytest.raises(TypeError, match=rf"rank \d \| {name}: .* ringar\.{name} takes NumPy"):
            function(argument)
    if f"grouped_{name}" in dir(ringar.cupy):
        with pytest.raises(TypeError, match=rf"received a numpy.ndarray in host memory. .*{name}"):
            getattr(ringar.cupy, f"grouped_{name}")([gpu.put(np.ones(3)), np.ones(3)])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_on_a_gpu_is_told_where_to_go(gpu: Gpu, name: str, works: None) -> None:
    array = gpu.put(np.ones(3))
    remedy = rf"ringar\.cupy\.{name} takes it"
    for argument in (array, foreign(array, "cuda")):
        with pytest.raises(TypeError, match=rf"ringar.{name} expected .* on a GPU: {remedy}"):
            getattr(ringar, name)(argument)
    if name != "alltoall":
        with pytest.raises(TypeError, match=remedy):
            getattr(ringar, f"grouped_{name}")([np.ones(3), array])


@pytest.mark.ranks(2)
def test_messages_from_a_gpu(gpu: Gpu, works: None) -> None:
    with pytest.raises(TypeError, match=r"ringar.send expected .* host, .* cupy\.asnumpy"):
        ringar.send(gpu.put(np.ones(3)), 1 - ringar.rank())


def test_other_arguments(gpu: Gpu, works: None) -> None:
    array = gpu.put(np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r'`dtype` must be None or "bfloat16"\. Rec.*\'float16\''):
        ringar.cupy.allgather(array, dtype="float16")
    with pytest.raises(TypeError, match="elements of 2 bytes.*received one of float32"):
        ringar.cupy.allreduce(array, dtype="bfloat16")
    with pytest.raises(ValueError, match=r"an op out of ringar\.Sum.*received 'sum'"):
        ringar.cupy.allreduce(array, "sum")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ringar.cupy.allreduce(array, compression=ringar.Compression.fp16)  # type: ignore[call-arg]


def test_out_that_cannot_be(gpu: Gpu, works: None) -> None:
    array = gpu.put(np.ones((4, 3), np.float32))
    matrix = gpu.put(np.ones((9, 6), np.float32))
    cases: list[tuple[Any, type[Exception], str]] = [
        (np.ones((4, 3), np.float32), TypeError, "received a numpy.ndarray in host memory"),
        (gpu.put(np.ones((4, 3))), TypeError, "dtype float32, as the input; received float64"),
        (gpu.put(np.ones((3, 4), np.float32)), ValueError, r"of shape \(4, 3\); received \(3, 4\)"),
        (matrix[:4, :3], ValueError, "C-contiguous; received one with strides"),
    ]
    for out, kind, text in cases:
        with pytest.raises(kind, match=text):
            ringar.cupy.allreduce(array, out=out)
        with pytest.raises(kind, match=text):
            ringar.cupy.grouped_broadcast([array], out=[out])
    long = matrix.reshape(54)
    for arrays, out in [
        ([long[:9]], [long[3:12]]),
        ([long[:9], long[9:18]], [long[9:18], long[:9]]),
        ([long[:9], long[9:18]], [long[20:29], long[20:29]]),
        ([long[:9], long[:9]], [long[:9], long[20:29]]),
    ]:
        with pytest.raises(ValueError, match="in `out` that share no memory"):
            ringar.cupy.grouped_allreduce(arrays, out=out)
    with pytest.raises(ValueError, match="expected 2 arrays in `out`; received 1"):
        ringar.cupy.grouped_allreduce([long[:9], long[9:18]], out=[long[:9]])
    with pytest.raises(ValueError, match=r"of shape .*; received \(4, 3\)|share no memory"):
        ringar.cupy.reducescatter(array, out=array)


def test_without_cupy(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.load.cache_clear()
    for name in (*NAMES, "grouped_allreduce"):
        argument = [1] if name.startswith("grouped") else 1
        with pytest.raises(ImportError, match=rf"ringar\.cupy\.{name} needs CuPy.*cupy-cuda12x"):
            getattr(ringar.cupy, name)(argument)
    device.load.cache_clear()


def test_without_a_gpu(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    device.load.cache_clear()
    monkeypatch.setattr(gpu.cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(UnsupportedError, match=r"ringar\.cupy\.allgather expected .* ringar.allga"):
        ringar.cupy.allgather(None)
    device.load.cache_clear()


# Process sets.


def memberships() -> list[list[int]]:
    ranks = list(range(ringar.size()))
    return [[ranks[-1]], ranks[::-1], ranks[1:] or ranks, ranks[::2]]


def test_process_sets(gpu: Gpu, works: None) -> None:
    """Numbered and ordered by the place in the set, not by the rank in the job."""
    sets = [ringar.add_process_set(ranks) for ranks in memberships()]
    for seed, process_set in enumerate(sets * 2):
        if not process_set.included():
            continue
        inputs = [
            common.values("float32", (2 * process_set.size(), 3), 10 * seed + r)
            for r in process_set.ranks
        ]
        place = process_set.rank()
        array = gpu.put(inputs[place])
        where: dict[str, Any] = {"process_set": process_set}
        rows = slice(2 * place, 2 * place + 2)
        average, total = (common.reduced(op, inputs) for op in (ringar.Average, ringar.Sum))
        assert_close(ringar.cupy.allreduce(array, **where).get(), average)
        assert_close(ringar.cupy.reducescatter(array, ringar.Sum, **where).get(), total[rows])
        for result, expected in [
            (ringar.cupy.allgather(array, **where), np.concatenate(inputs)),
            (ringar.cupy.broadcast(array, process_set.ranks[-1], **where), inputs[-1]),
            (ringar.cupy.alltoall(array, **where), np.concatenate([a[rows] for a in inputs])),
        ]:
            common.assert_same(result.get(), expected, process_set.ranks)
    for process_set in sets:
        ringar.remove_process_set(process_set)


@pytest.mark.ranks(2, 3)
def test_process_sets_that_cannot_be_used(gpu: Gpu, works: None) -> None:
    array = gpu.put(np.ones(3, np.float32))
    process_set = ringar.add_process_set([0])
    if not process_set.included():
        with pytest.raises(MismatchError, match=r"expected a member of process set"):
            ringar.cupy.allreduce(array, process_set=process_set)
    with pytest.raises(ValueError, match="a root_rank out of the process set's ranks"):
        ringar.cupy.broadcast(array, 1, process_set=process_set)
    ringar.remove_process_set(process_set)
    with pytest.raises(ValueError, match="a process set that is in use"):
        ringar.cupy.allreduce(array, process_set=process_set)
