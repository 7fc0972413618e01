"""ringar's engine on the gradients of ResNet-50, 214 arrays in one group."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.peers.ringar_peer import REQUIREMENTS, RingarPeer, command, in_engine  # noqa: F401

TITLE = "ringar (engine, 214 arrays in a group)"


def resnet50_gradients() -> list[int]:
    """Returns the elements of each trainable variable of keras.applications.ResNet50."""

    def convolution(kernel: int, inputs: int, outputs: int) -> list[int]:
        """Returns those of a kernel, a bias, and the scale and offset of its normalization."""
        return [kernel * kernel * inputs * outputs, outputs, outputs, outputs]

    sizes = convolution(7, 3, 64)
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            if block == 0:
                sizes += convolution(1, inputs, 4 * width)
            sizes += convolution(1, inputs, width)
            sizes += convolution(3, width, width)
            sizes += convolution(1, width, 4 * width)
            inputs = 4 * width
    return [*sizes, 2048 * 1000, 1000]


RESNET50_BYTES = 4 * sum(resnet50_gradients())


class Peer(RingarPeer):
    def allreduce(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        ends = np.cumsum(resnet50_gradients())[:-1]
        result = np.empty_like(array)
        return in_engine(
            np.split(array, ends), np.split(result, ends), result, "allreduce", name="group"
        )
