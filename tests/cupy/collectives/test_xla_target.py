"""The custom call of functions that XLA has compiled for a GPU, called as XLA calls it.

No function is compiled here: that takes TensorFlow a GPU (test_tensorflow.py).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ringar
from ringar.collectives import compiled
from ringar.collectives.call import Call
from ringar.collectives.compression import Compression
from ringar.job import native
from ringar.keras import buckets
from ringar.keras.reduction import Reduction
from tests.cupy.collectives.common import Gpu, StandIn
from tests.plugin import fixtures


class Status(ctypes.Structure):
    """`std::optional<std::string>` of libstdc++: where the text is, its length, … and whether."""

    _fields_ = [
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("room", ctypes.c_char * 16),
        ("has_value", ctypes.c_bool),
    ]


class Buffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.c_void_p),
    ]


class Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class Buffers(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(ctypes.POINTER(Buffer))),
    ]


class Attrs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(ctypes.POINTER(Bytes))),
        ("values", ctypes.POINTER(ctypes.POINTER(Bytes))),
    ]


class Arguments(ctypes.Structure):
    """Of a function that makes an error (a text), or finds the stream."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("subject", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Arguments))


class Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("version", ctypes.c_byte * 24),
        ("internal", ctypes.c_void_p),
        ("error_create", FUNCTION),
        ("error_get_message", ctypes.c_void_p),
        ("error_destroy", ctypes.c_void_p),
        ("handler_register", ctypes.c_void_p),
        ("stream_get", FUNCTION),
    ]


class CallFrame(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("api", ctypes.POINTER(Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("operands", Buffers),
        ("results", Buffers),
        ("attrs", Attrs),
    ]


EXECUTE, STRING = 3, 4


def typed(stream: int, operands: Sequence[Any], results: Sequence[Any], text: bytes) -> str:
    """Call the target as XLA's typed interface does; return its error."""
    messages = []

    def create(arguments: Any) -> int:
        messages.append(ctypes.string_at(arguments.contents.subject).decode())
        return 1

    def find(arguments: Any) -> None:
        arguments.contents.stream = stream

    def buffers(arrays: Sequence[Any]) -> Buffers:
        pointers = [ctypes.pointer(Buffer(data=array.data.ptr)) for array in arrays]
        array_type = ctypes.POINTER(Buffer) * len(pointers)
        return Buffers(size=len(pointers), buffers=array_type(*pointers))

    api = Api(error_create=FUNCTION(create), stream_get=FUNCTION(find))
    attrs = Attrs(
        size=1,
        types=(ctypes.c_int * 1)(STRING),
        names=(ctypes.POINTER(Bytes) * 1)(ctypes.pointer(Bytes(b"text", 4))),
        values=(ctypes.POINTER(Bytes) * 1)(ctypes.pointer(Bytes(text, len(text)))),
    )
    frame = CallFrame(
        api=ctypes.pointer(api),
        stage=EXECUTE,
        operands=buffers(operands),
        results=buffers(results),
        attrs=attrs,
    )
    target = native.library().ringar_xla_typed_collective_on_gpu
    target.restype = ctypes.c_void_p
    error = target(ctypes.byref(frame))
    assert (error is None) == (not messages)
    return messages[0] if messages else ""


def older(stream: int, operands: Sequence[Any], results: Sequence[Any], text: bytes) -> str:
    """Call the target as XLA calls a status-returning custom call; return its error."""
    buffers = [*operands, *results]
    pointers = (ctypes.c_void_p * len(buffers))(*[array.data.ptr for array in buffers])
    status = Status()
    native.library().ringar_xla_collective_on_gpu(
        ctypes.c_void_p(stream),
        pointers,
        ctypes.c_char_p(text),
        ctypes.c_size_t(len(text)),
        ctypes.byref(status),
    )
    return status.text.decode() if status.has_value else ""


Run = Callable[..., tuple[list[Any], str]]


@pytest.fixture(params=[typed, older])
def run(request: pytest.FixtureRequest) -> Run:
    """A function that returns the results of the custom call, of `shapes`, and its error."""

    def run(
        gpu: Gpu, call: Call, inputs: Sequence[Any], shapes: Sequence[Sequence[int]]
    ) -> tuple[list[Any], str]:
        token = gpu.cupy.empty((1,), np.float32)
        results = [gpu.cupy.empty(shape, inputs[0].dtype) for shape in shapes]
        text = call.spec(inputs[0].dtype.name, [array.shape for array in inputs]).encode()
        stream = gpu.cupy.cuda.get_current_stream().ptr
        error = request.param(stream, [token, *inputs], [token, *results], text)
        return results, error

    return run


def test_results_are_there_when_the_call_returns(gpu: Gpu, run: Run) -> None:
    ranks, rank = ringar.size(), ringar.rank()
    with gpu.cupy.cuda.Stream(non_blocking=True):
        arrays = [gpu.cupy.empty((rows, 3), np.float32) for rows in (5, 1, 200)]
        for array in arrays:
            gpu.produce(array, np.full(array.shape, rank + 1, np.float32), 0.03)
        start = time.monotonic()
        call = Call("allreduce", postscale=0.5, name="gradients")
        results, error = run(gpu, call, arrays, [array.shape for array in arrays])
        assert error == ""
        if ranks > 1:
            assert time.monotonic() - start > 0.05
        for result in results:
            assert (result.get() == ranks * (ranks + 1) / 4).all()


def test_every_collective(gpu: Gpu, run: Run) -> None:
    ranks, rank = ringar.size(), ringar.rank()
    rows = np.arange(2 * ranks * 3, dtype=np.int32).reshape(2 * ranks, 3)
    part = slice(2 * rank, 2 * rank + 2)
    cases = {
        "reducescatter": ((2, 3), ranks * rows[part] + sum(range(ranks))),
        "allgather": ((2 * ranks**2, 3), np.concatenate([rows + r for r in range(ranks)])),
        "broadcast": (rows.shape, rows + ranks - 1),
        "alltoall": (rows.shape, np.concatenate([rows[part] + r for r in range(ranks)])),
    }
    with gpu.cupy.cuda.Stream(non_blocking=True):
        for name, (shape, expected) in cases.items():
            call = Call(name, root=ranks - 1 if name == "broadcast" else 0, name=name)
            (result,), error = run(gpu, call, [gpu.put(rows + rank)], [shape])
            assert error == ""
            np.testing.assert_array_equal(result.get(), expected, name)


@pytest.mark.ranks(2, 3, 4)
def test_ranks_that_disagree(gpu: Gpu, run: Run) -> None:
    with gpu.cupy.cuda.Stream(non_blocking=True):
        for shape in ((3 + ringar.rank(),), (3,)):
            array = gpu.put(np.ones(shape, np.float32))
            (result,), error = run(gpu, Call("allreduce", name="x"), [array], [shape])
            if shape == (3,) and ringar.rank() > 0:
                assert error == ""
            if error:
                assert "expected the same collective, shapes" in error
                assert f"rank {ringar.size() - 1}: allreduce" in error
        assert error == ""
        assert result.get().tolist() == [ringar.size()] * 3


@pytest.mark.ranks(2, 3, 4)
def test_a_failure_after_the_call_was_enqueued(gpu: Gpu, run: Run) -> None:
    if not isinstance(gpu, StandIn):
        pytest.skip("only the stand-in fails when it is told to")
    call = Call("allreduce", name="doomed")
    with gpu.cupy.cuda.Stream(non_blocking=True):
        array = gpu.cupy.empty((1000,), np.float32)
        gpu.produce(array, np.ones(1000, np.float32), 0.1)
        if ringar.rank() == 1:
            gpu.driver.fail_later("ncclAllReduce", 1)
        (result,), error = run(gpu, call, [array], [(1000,)])
        assert "doomed" in error
        assert "rank 1" in error
        assert np.isnan(result.get()).all()
    fixtures.restart()


def test_a_process_set_that_does_not_exist(gpu: Gpu, run: Run) -> None:
    call = Call("allreduce", process_set=77, name="x")
    with gpu.cupy.cuda.Stream(non_blocking=True):
        array = gpu.put(np.ones(3, np.float32))
        assert "process set 77" in run(gpu, call, [array], [(3,)])[1]


def test_the_gradients_of_a_step_are_one_group(
    gpu: Gpu, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA's thread waits for each collective, so that buckets would wait, and overlap nothing."""
    if not isinstance(gpu, StandIn):
        pytest.skip("only the stand-in counts calls")
    rows = (500, 300, 3000, 10)
    gradients = [buckets.Spec((count, 1000), "float32") for count in rows]
    reduction = Reduction(
        op=ringar.Sum, compression=Compression.none, algorithm=None, process_set=None,
        bucket_bytes=None, prescale_factor=1.0, postscale_factor=1.0, sparse_as_dense=False,
    )  # fmt: skip
    on_cpu = reduction.groups(gradients)
    monkeypatch.setattr(compiled, "is_for_gpu", lambda: True)
    on_gpu = reduction.groups(gradients)
    assert len(on_cpu) > len(on_gpu) == 1
    groups = []
    for plan in (on_cpu, on_gpu):
        before = gpu.driver.calls("ncclGroupEnd")
        with gpu.cupy.cuda.Stream(non_blocking=True):
            for number, bucket in enumerate(plan):
                shapes = [(rows[index], 4) for index in bucket.indices]
                arrays = [gpu.put(np.ones(shape, np.float32)) for shape in shapes]
                results, error = run(gpu, Call("allreduce", name=f"{number}"), arrays, shapes)
                assert error == ""
                assert all((result.get() == ringar.size()).all() for result in results)
        groups.append(gpu.driver.calls("ncclGroupEnd") - before)
    assert groups == ([len(on_cpu), 1] if ringar.size() > 1 else [0, 0])
