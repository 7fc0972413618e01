"""What these tests share: a GPU or its stand-in, dtypes that CuPy may not have, and comparisons."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import ringar
from tests.collectives import common
from tests.standins.cupy_device import DeviceCupy
from tests.standins.gpu_driver import Driver

HIDDEN = "bfloat16 in uint16"
"""What `dtype="bfloat16"` is for."""

FLOATING = (*common.FLOATING, HIDDEN)
REDUCIBLE = (*common.REDUCIBLE, HIDDEN)
MOVED = (*common.MOVED, HIDDEN)


class Gpu:
    """This rank's GPU.

    Attributes:
        cupy: CuPy or its stand-in.
        has_bfloat16: whether its arrays can be of that dtype.
    """

    def __init__(self, cupy: Any, *, has_bfloat16: bool) -> None:
        self.cupy = cupy
        self.has_bfloat16 = has_bfloat16

    def put(self, array: np.ndarray) -> Any:
        """A copy on the GPU."""
        return self.cupy.asarray(array)

    def produce(self, array: Any, values: np.ndarray, seconds: float = 0.05) -> None:
        """Enqueues kernels that take their time, and then write `values`."""
        raise NotImplementedError

    def check(self) -> None:
        """Fails if the GPU was misused."""


class RealGpu(Gpu):
    def __init__(self, cupy: Any) -> None:
        try:
            cupy.zeros(1, ml_dtypes.bfloat16)
            super().__init__(cupy, has_bfloat16=True)
        except Exception:
            super().__init__(cupy, has_bfloat16=False)

    def produce(self, array: Any, values: np.ndarray, seconds: float = 0.05) -> None:
        on_gpu = self.cupy.asarray(values)  # before: a copy from the host waits for the stream
        stream = self.cupy.cuda.get_current_stream()
        stream.launch_host_func(lambda _: time.sleep(seconds), None)
        array[...] = on_gpu


class StandIn(Gpu):
    """A GPU for each rank, of which it sees those of the others, too.

    Args:
        library: the stand-in for CUDA and NCCL.
        rank: this rank; its GPU has the same number.
        size: the number of ranks.
    """

    cupy: DeviceCupy

    def __init__(self, library: Path, rank: int, size: int) -> None:
        self.driver = Driver(library)
        self.driver.set_devices(size)
        super().__init__(DeviceCupy(self.driver), has_bfloat16=True)
        self.cupy.cuda.Device(rank).use()

    def produce(self, array: Any, values: np.ndarray, seconds: float = 0.05) -> None:
        self.cupy.produce(array, values, seconds)

    def check(self) -> None:
        misuse = self.driver.misuse()
        self.driver.forget()
        assert not misuse, misuse
        assert not self.driver.errors

    def close(self) -> None:
        """Fails if ringar, which was shut down before, has left anything there."""
        self.cupy.close()
        self.driver.close()
        self.check()
        assert self.driver.open() == ""


class Dtype:
    """How arrays of a dtype get to the GPU and back.

    Attributes:
        name: of the dtype in host memory.
        options: what the collectives must be told.
    """

    def __init__(self, gpu: Gpu, kind: str) -> None:
        self._gpu = gpu
        self.name = "bfloat16" if kind == HIDDEN else kind
        self._hidden = kind == HIDDEN or (kind == "bfloat16" and not gpu.has_bfloat16)
        self.options: dict[str, Any] = {"dtype": "bfloat16"} if self._hidden else {}

    def put(self, array: np.ndarray) -> Any:
        """A copy on the GPU."""
        assert array.dtype == common.numpy_dtype(self.name)
        return self._gpu.put(array.view(np.uint16) if self._hidden else array)

    def get(self, array: Any) -> np.ndarray:
        """A copy in host memory, when the current stream has come so far."""
        assert isinstance(array, self._gpu.cupy.ndarray)
        host = array.get()
        return np.asarray(host.view(common.numpy_dtype("bfloat16")) if self._hidden else host)


def assert_close(received: np.ndarray, expected: np.ndarray, case: object = "") -> None:
    """Fails unless both are the same but for the rounding of a few terms, whose order is NCCL's."""
    if expected.dtype.kind in "iub":
        common.assert_same(received, expected, case)
        return
    assert received.dtype == expected.dtype, case
    assert received.shape == expected.shape, case
    tolerance = 4 * ringar.size() * float(ml_dtypes.finfo(expected.dtype).eps)
    np.testing.assert_allclose(
        received.astype(np.float64),
        expected.astype(np.float64),
        rtol=tolerance,
        atol=2 * tolerance,
        err_msg=str(case),
    )
