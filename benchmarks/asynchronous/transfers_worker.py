"""Reads and writes the other rank's part of a window, for `benchmarks.asynchronous.transfers`.

python -m benchmarks.asynchronous.transfers_worker OPTIONS
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, write_report

LEAST_SECONDS = 0.05
"""What a turn takes at least: short transfers are repeated."""


def seconds_of(act: Callable[[], Any]) -> float:
    """Returns the seconds of a call, the mean of as many as fill a turn."""
    act()
    calls, took = 1, 0.0
    while took < LEAST_SECONDS:
        start = time.perf_counter()
        for _ in range(calls):
            act()
        took = time.perf_counter() - start
        if took < LEAST_SECONDS:
            calls *= 2
    return took / calls


def in_engine(window: Any, kind: int, array: np.ndarray) -> Callable[[], Any]:
    """Returns an access to the part of rank 0, called with arguments that C takes as they are."""
    native = window._native
    pointer = ctypes.c_void_p(array.ctypes.data)
    numbers = ctypes.c_int32(0), ctypes.c_int32(kind), ctypes.c_int64(0), ctypes.c_int64(array.size)
    return functools.partial(native._access, native._handle, *numbers, pointer, None)


def measure(size: int, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Returns the seconds of each turn by way, and the number of wrong elements."""
    import keras

    import ringar
    from ringar.job import native_window

    count, is_worker = size // 4, ringar.rank() == 1
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(count, use_bias=False)])
    server = ringar.ParameterServer(model, keras.optimizers.SGD(1.0), servers=[0])
    window = ringar.Window(0 if is_worker else count, "float32", name="transfers")
    times: dict[str, list[float]] = {}
    errors = 0
    if is_worker:
        values = np.arange(count, dtype="float32")
        out, zeros = np.ones(count, "float32"), np.zeros(count, "float32")
        gradients = [zeros.reshape(1, -1)]
        server.pull()

        def push() -> None:
            server.push(gradients)
            server.replica.wait_until_taken()

        ways: dict[str, Callable[[], Any]] = {
            "copy": lambda: np.copyto(out, values),
            "put": in_engine(window, native_window.PUT, values),
            "accumulate": in_engine(window, native_window.ADD, zeros),
            "get": in_engine(window, native_window.GET, out),
            "put, from Python": lambda: window.put(0, values),
            "get, from Python": lambda: window.get(0, out=out),
            "pull of a server": server.pull,
            "push to a server, applied": push,
        }
        times = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(seconds_of(way))
        errors = int(np.count_nonzero(window.get(0) != values) + np.count_nonzero(out != values))
    server.close()
    ringar.barrier()
    window.close()
    return times, errors


def main() -> None:
    options = read_options()
    import ringar

    ringar.init(intra_op_threads=1, inter_op_threads=2)
    turns = {size: measure(size, options["rounds"]) for size in options["sizes"]}
    report = {
        "seconds": {size: ways for size, (ways, _) in turns.items()},
        "wrong": sum(errors for _, errors in turns.values()),
    }
    write_report(options, ringar.rank(), report)
    ringar.shutdown()


if __name__ == "__main__":
    main()
