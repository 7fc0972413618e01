"""The base of adapters that run inside a job of ringar.

TensorFlow is imported where a rank needs it: the harness, which reads only titles, starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ringar
from benchmarks.harness.launch import ringarrun

REQUIREMENTS: tuple[str, ...] = ()
command = ringarrun


class RingarPeer:
    def __init__(self) -> None:
        ringar.init()
        self.rank, self.size = ringar.rank(), ringar.size()

    def barrier(self) -> None:
        ringar.barrier()


def in_engine(
    inputs: list[np.ndarray],
    outputs: list[np.ndarray],
    result: np.ndarray,
    collective: str,
    **options: Any,
) -> Callable[[], np.ndarray]:
    """Returns a function that runs a collective on the same arrays and returns `result`."""
    from ringar.collectives.call import Call
    from ringar.job import native

    spec = Call(collective, **options).spec(inputs[0].dtype.name)
    prepared = native.Prepared(spec, inputs, outputs)

    def run() -> np.ndarray:
        prepared.run()
        return result

    return run
