"""The custom call of functions that XLA has compiled for a GPU, called as XLA calls it.

No function is compiled here: that takes TensorFlow a GPU (test_tensorflow.py).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ringar
from ringar.collectives.call import Call
from ringar.job import native
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


def run(
    gpu: Gpu, call: Call, inputs: Sequence[Any], shapes: Sequence[Sequence[int]]
) -> tuple[list[Any], str]:
    """The results of the custom call, of `shapes`, and its error."""
    token = gpu.cupy.empty((1,), np.float32)
    results = [gpu.cupy.empty(shape, inputs[0].dtype) for shape in shapes]
    buffers = [token, *inputs, token, *results]
    pointers = (ctypes.c_void_p * len(buffers))(*[array.data.ptr for array in buffers])
    opaque = call.spec(inputs[0].dtype.name, [array.shape for array in inputs]).encode()
    status = Status()
    native.library().ringar_xla_collective_on_gpu(
        ctypes.c_void_p(gpu.cupy.cuda.get_current_stream().ptr),
        pointers,
        ctypes.c_char_p(opaque),
        ctypes.c_size_t(len(opaque)),
        ctypes.byref(status),
    )
    return results, status.text.decode() if status.has_value else ""


def test_results_are_there_when_the_call_returns(gpu: Gpu) -> None:
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


def test_every_collective(gpu: Gpu) -> None:
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
def test_ranks_that_disagree(gpu: Gpu) -> None:
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
def test_a_failure_after_the_call_was_enqueued(gpu: Gpu) -> None:
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


def test_a_process_set_that_does_not_exist(gpu: Gpu) -> None:
    call = Call("allreduce", process_set=77, name="x")
    with gpu.cupy.cuda.Stream(non_blocking=True):
        array = gpu.put(np.ones(3, np.float32))
        assert "process set 77" in run(gpu, call, [array], [(3,)])[1]
