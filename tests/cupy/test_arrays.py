"""The collectives of ringar.cupy without a GPU and without the engine: Python alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ringar
from ringar.collectives.call import Call
from ringar.cupy import arrays, device, repeats
from ringar.errors import OutOfMemoryError, RingarError
from ringar.job import native
from tests.standins.cupy_device import Array, DeviceCupy
from tests.standins.gpu_driver import ImmediateDriver

pytestmark = [pytest.mark.ranks(1), pytest.mark.usefixtures("initialized")]

CALL = Call("allreduce", name="t")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceCupy]:
    """A stand-in for CuPy with two GPUs."""
    stand_in = DeviceCupy(ImmediateDriver(devices=2))
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    device.load.cache_clear()
    yield stand_in
    device.load.cache_clear()


class Engine:
    """Instead of `native.run_on_gpu`: notes calls, does nothing with the arrays."""

    def __init__(self) -> None:
        self.specs: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def run_on_gpu(
        self,
        spec: str,
        inputs: Sequence[int],
        shapes: Sequence[Sequence[int]],
        outputs: Sequence[int] | None,
        allocate: Callable[[int, int], int],
        gpu: int,
        stream: int,
        *,
        splits: Sequence[int] | None = None,
        received_count: int = 0,
    ) -> np.ndarray:
        self.specs.append(spec)
        self.calls.append({"inputs": list(inputs), "outputs": outputs, "gpu": gpu,
                           "stream": stream, "splits": splits})  # fmt: skip
        if outputs is None:
            self.calls[-1]["outputs"] = [allocate(i, 7) for i in range(len(inputs))]
        return np.zeros(received_count, np.int64)


@pytest.fixture
def engine(cupy: DeviceCupy, monkeypatch: pytest.MonkeyPatch) -> Engine:
    stand_in = Engine()
    monkeypatch.setattr(native, "run_on_gpu", stand_in.run_on_gpu)
    monkeypatch.setattr(repeats, "remember", lambda *_: None)
    return stand_in


# Where arrays lie.


def test_all_arrays_are_on_one_gpu(cupy: DeviceCupy, engine: Engine) -> None:
    first_array = cupy.asarray(np.ones(3))
    with cupy.cuda.Device(1):
        second_array = cupy.asarray(np.ones(3))
    with pytest.raises(ValueError, match=r"^rank 0 \| allreduce: expected arrays on one GPU; rec"
                                         r"eived arrays on GPUs 0, 1\. Copy"):  # fmt: skip
        ringar.cupy.grouped_allreduce([first_array, second_array])
    with pytest.raises(ValueError, match="on GPU 1, as the input; received one on GPU 0"):
        ringar.cupy.allreduce(second_array, out=first_array)
    assert not engine.specs


def test_the_gpu_of_the_arrays_is_used_and_its_stream(cupy: DeviceCupy, engine: Engine) -> None:
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream(non_blocking=True)
        array = cupy.asarray(np.ones((3, 2), np.int8))
        stream.__enter__()
    assert ringar.cupy.allreduce(array, ringar.Sum).device.id == 1
    result = ringar.cupy.allgather(array)
    assert (result.device.id, result.shape, result.dtype) == (1, (7, 2), np.int8)
    assert {(call["gpu"], call["stream"]) for call in engine.calls} == {(1, stream.ptr)}
    assert engine.calls[-1]["outputs"] == [result.data.ptr]
    assert cupy.device() == 0
    ringar.cupy.allreduce(cupy.asarray(np.ones(3)))
    assert (engine.calls[-1]["gpu"], engine.calls[-1]["stream"]) == (0, 0)


def test_contiguous_arrays_are_taken_as_they_are(cupy: DeviceCupy, engine: Engine) -> None:
    array = cupy.asarray(np.ones((4, 4), np.float32))
    ringar.cupy.allreduce(array)
    ringar.cupy.allreduce(array[1:3])
    ringar.cupy.allreduce(array, out=array)
    ringar.cupy.broadcast(array.T)
    address, rows, in_place, copied = (call["inputs"][0] for call in engine.calls)
    assert (address, rows, in_place) == (array.data.ptr, array.data.ptr + 16, array.data.ptr)
    assert engine.calls[2]["outputs"] == [array.data.ptr]
    assert copied != array.data.ptr


# What is taken for an array on a GPU.


def of(members: dict[str, Any]) -> Any:
    return type("Other", (), members)()


def test_other_libraries(cupy: DeviceCupy) -> None:
    array = cupy.asarray(np.ones(3))
    described = {"__cuda_array_interface__": array.__cuda_array_interface__}
    exported = {"__dlpack__": lambda self, **_: array, "__dlpack_device__": lambda self: (2, 0)}
    on_host = {**exported, "__dlpack_device__": lambda self: (1, 0)}
    (view,) = arrays.arrays_of(cupy, CALL, [of(described)])
    assert view.data.ptr == array.data.ptr
    assert arrays.arrays_of(cupy, CALL, [of(exported), array]) == [array, array]
    assert arrays.arrays_of(cupy, CALL, [of({**described, **exported})]) == [array]
    # Managed memory has a type of its own in DLPack.
    (view,) = arrays.arrays_of(cupy, CALL, [of({**described, **on_host})])
    assert view.data.ptr == array.data.ptr
    for argument, text in ((of(on_host), r"Other in host memory\. "), (3, r"builtins\.int\. ")):
        with pytest.raises(TypeError, match=rf"expected a cupy\.ndarray, or .*received a .*{text}"):
            arrays.arrays_of(cupy, CALL, [argument])


def test_outputs_may_not_be_read_only(cupy: DeviceCupy, engine: Engine) -> None:
    array = cupy.asarray(np.ones(3))
    described = {**array.__cuda_array_interface__, "data": (array.data.ptr, True)}
    frozen = of({"__cuda_array_interface__": described})
    ringar.cupy.allreduce(frozen)
    with pytest.raises(ValueError, match="an array that may be written"):
        ringar.cupy.allreduce(array, out=frozen)


def test_empty_arrays_have_no_address(cupy: DeviceCupy, engine: Engine) -> None:
    empty = cupy.asarray(np.ones((0, 3)))
    assert empty.data.ptr == 0
    group = [empty, cupy.asarray(np.ones(2)), empty]
    assert len(ringar.cupy.grouped_allreduce(group, out=group)) == 3


# What the engine is told.


def test_specs(cupy: DeviceCupy, engine: Engine) -> None:
    array = cupy.asarray(np.ones(3, np.uint16))
    ringar.cupy.allreduce(array, dtype="bfloat16", name="some  name", algorithm="ring")
    ringar.cupy.broadcast(array, np.int64(0))
    ringar.cupy.alltoall(array, np.array([3], np.int8))
    ringar.cupy.alltoall(array, [])
    assert engine.specs[:2] == [
        "allreduce dtype=bfloat16 op=sum root=0 set=0 prescale=1.0 postscale=1.0 "
        "algorithm=ring name=some name",
        "broadcast dtype=uint16 op=sum root=0 set=0 prescale=1.0 postscale=1.0 name=",
    ]
    assert [call["splits"] for call in engine.calls] == [None, None, [3], [-1]]


def test_dtypes_of_a_group_go_one_after_the_other(cupy: DeviceCupy, engine: Engine) -> None:
    dtypes = ("float32", "int8", "float32", "bool", "int8")
    group = [cupy.asarray(np.ones(i + 1, dtype)) for i, dtype in enumerate(dtypes)]
    results = ringar.cupy.grouped_broadcast(group)
    assert [spec.split()[1] for spec in engine.specs] == [
        f"dtype={dtype}" for dtype in ("float32", "int8", "bool")
    ]
    for array, result in zip(group, results, strict=True):
        assert (result.shape, result.dtype) == (array.shape, array.dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_factors_of_other_ops_than_sums_are_applied_here(
    cupy: DeviceCupy, engine: Engine, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def run_on_gpu(spec: str, inputs: Any, shapes: Any, outputs: Any, *place: Any, **_: Any) -> Any:
        calls.append((spec, inputs[0]))
        return np.zeros(0)

    monkeypatch.setattr(native, "run_on_gpu", run_on_gpu)
    array, out = (cupy.asarray(np.array([2.0, 3.0], np.dtype(dtype))) for _ in range(2))
    factors: dict[str, Any] = {"prescale_factor": 0.1, "postscale_factor": 0.5}
    ringar.cupy.allreduce(array, ringar.Max, out=out, **factors)
    ringar.cupy.allreduce(array, ringar.Sum, out=out, **factors)
    ringar.cupy.allreduce(cupy.asarray(np.ones(2, np.int8)), ringar.Max, **factors)
    assert ["prescale=1.0 postscale=1.0" in spec for spec, _ in calls] == [True, False, False]
    assert [address == array.data.ptr for _, address in calls] == [False, True, False]
    assert out.get().tolist() == [1.0, 1.5]  # the engine has written nothing there
    assert out.dtype == array.dtype


# Memory for results.


def library_that(code: int) -> Any:
    """A library that asks for memory for its first array, then ends with a code."""

    def run(spec: bytes, described: Any, count: int, *rest: Any) -> int:
        callback, context = rest[3:5]
        pointer = callback(context, 0, 5)
        assert (pointer is None) == bool(code)
        return code

    return SimpleNamespace(
        ringar_run=run, ringar_run_on_gpu=run, ringar_last_error=lambda: b"rank 0 | no memory"
    )


def test_what_cupy_raises_is_raised(cupy: DeviceCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemoryError(MemoryError):
        pass

    array = cupy.asarray(np.ones((3, 2)))
    monkeypatch.setattr(native, "library", lambda: library_that(0))
    result = ringar.cupy.allgather(array)
    assert result.shape == (5, 2)

    def no_memory(*_: Any) -> Any:
        raise OutOfMemoryError("17 bytes")

    monkeypatch.setattr(native, "library", lambda: library_that(8))
    monkeypatch.setattr(cupy, "empty", no_memory)
    with pytest.raises(OutOfMemoryError, match="^17 bytes$"):
        ringar.cupy.allgather(array)


def test_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: library_that(0))
    ((result,), _) = native.run("allgather", [np.ones((3, 2))], None)
    assert result.shape == (5, 2)
    for error, raised in ((MemoryError, OutOfMemoryError), (ValueError, ValueError)):

        def no_memory(*_: Any, error: type[Exception] = error) -> Any:
            raise error("no")

        with monkeypatch.context() as patch:
            array = np.ones((3, 2))
            patch.setattr(native, "library", lambda: library_that(8))
            patch.setattr(np, "empty", no_memory)
            with pytest.raises(raised):
                native.run("allgather", [array], None)


def test_synchronize(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [0, 10]
    stand_in = SimpleNamespace(
        ringar_synchronize_gpu=lambda: codes.pop(0), ringar_last_error=lambda: b"rank 1 died"
    )
    monkeypatch.setattr(native, "library", lambda: stand_in)
    ringar.cupy.synchronize()
    with pytest.raises(RingarError, match="rank 1 died"):
        ringar.cupy.synchronize()


# The package.


def test_scan_needs_no_tensorflow() -> None:
    code = (
        "import sys, ringar.cupy; from ringar.cupy import scan; "
        "sys.exit(any(name in sys.modules for name in ('tensorflow', 'cupy')) or "
        "not callable(scan) or not callable(ringar.cupy.scan) or "
        "'allreduce' not in dir(ringar.cupy))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_arrays_are_not_taken_for_tensors(cupy: DeviceCupy) -> None:
    """TensorFlow would make a tensor of them, number by number."""
    array = cupy.asarray(np.ones(3))
    assert isinstance(array, Array)
    with pytest.raises(TypeError, match=r"received a tests\.standins\.cupy_device\.Array, which"):
        ringar.allreduce(array)
