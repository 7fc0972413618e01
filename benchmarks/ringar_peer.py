"""What the adapters that run inside a ringar job have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import ringar
from benchmarks.launch import ringarrun
from ringar import native
from ringar.collectives.call import Call

REQUIREMENTS: tuple[str, ...] = ()
command = ringarrun


class RingarPeer:
    def __init__(self) -> None:
        ringar.init()
        self.rank, self.size = ringar.rank(), ringar.size()

    def barrier(self) -> None:
        ringar.barrier()


def repeated(
    call: Call, inputs: list[np.ndarray], outputs: list[np.ndarray], result: np.ndarray
) -> Callable[[], np.ndarray]:
    """A function that runs a collective on the same arrays each time and returns ``result``."""
    prepared = native.Prepared(call.spec(inputs[0].dtype.name), inputs, outputs)

    def run() -> np.ndarray:
        prepared.run()
        return result

    return run
