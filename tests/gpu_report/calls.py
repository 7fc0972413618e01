"""What an allreduce of 4 KiB takes: enqueued by CuPy, waited for, and in a compiled function.

    ringarrun -np 2 python -m tests.gpu_report.calls

Prints one line on rank 0. Without a GPU it measures the compiled function on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import tensorflow as tf

import ringar

ELEMENTS, CALLS, ROUNDS = 1024, 20, 9


@tf.function(jit_compile=True)
def compiled(x: tf.Tensor) -> tf.Tensor:
    for _ in range(CALLS):
        x = ringar.allreduce(x, ringar.Average) + 1.0
    return x


def microseconds(run: Callable[[], object]) -> str:
    """Return what one of the calls in `run` takes: the median of the rounds, least and greatest."""
    run()
    times = []
    for _ in range(ROUNDS):
        ringar.barrier()
        start = time.perf_counter()
        run()
        times.append(1e6 * (time.perf_counter() - start) / CALLS)
    return f"{median(times):.0f} ({min(times):.0f}, {max(times):.0f}) us"


def cupy_calls() -> str:
    import cupy

    array = cupy.ones(ELEMENTS, "float32")

    def enqueued() -> None:
        for _ in range(CALLS):
            ringar.cupy.allreduce(array, ringar.Sum, out=array)
        ringar.cupy.synchronize()

    def waited() -> None:
        for _ in range(CALLS):
            ringar.cupy.allreduce(array, ringar.Sum, out=array)
            ringar.cupy.synchronize()

    return f"CuPy {microseconds(enqueued)}, waited for {microseconds(waited)}, "


def main() -> None:
    ringar.init()
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    text = cupy_calls() if has_gpu else ""
    with tf.device("/GPU:0" if has_gpu else "/CPU:0"):
        x = tf.ones([ELEMENTS])
        result = compiled(x).numpy()
        assert (result == CALLS + 1).all(), f"expected {CALLS + 1}, received {result}"
        text += f"compiled {microseconds(lambda: compiled(x).numpy())}"
    if ringar.rank() == 0:
        print(f"allreduce of 4 KiB: {text}")


if __name__ == "__main__":
    main()
