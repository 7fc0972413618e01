"""Three networks as lists of layers: how many parameters each has, and how much work it is.

A prediction needs to know when gradients are ready: those of the last layers come first, and how
soon depends on the work of the layers. So each layer has its trainable parameters and its
multiply-adds for one image, in the order of the forward pass. The layers are those of the papers:
VGG-16 (Simonyan and Zisserman 2015, configuration D), ResNet-101 (He et al. 2016), Inception-V3
(Szegedy et al. 2016, without the auxiliary classifier). A convolution with batch normalization has
no bias; normalization adds a scale and an offset per channel (in Inception-V3 an offset only),
which are counted with their convolution. A test compares the sums with keras.applications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A layer with weights.

    Attributes:
        parameters: trainable parameters.
        work: multiply-adds of the forward pass for one image.
    """

    parameters: int
    work: int


def convolution(
    side: int, channels: int, filters: int, kernel: tuple[int, int], extra: int
) -> Layer:
    """Returns a convolution whose output is `side` x `side`; `extra` parameters per filter."""
    weights = kernel[0] * kernel[1] * channels * filters
    return Layer(weights + extra * filters, side * side * weights)


def dense(inputs: int, outputs: int) -> Layer:
    """Returns a fully connected layer with bias."""
    return Layer(inputs * outputs + outputs, inputs * outputs)


def vgg16() -> list[Layer]:
    """Returns VGG-16: 138.4 million parameters, 124 million of them in dense layers."""
    layers, channels, side = [], 3, 224
    for filters, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            layers.append(convolution(side, channels, filters, (3, 3), extra=1))
            channels = filters
        side //= 2
    return [*layers, dense(7 * 7 * 512, 4096), dense(4096, 4096), dense(4096, 1000)]


def resnet101() -> list[Layer]:
    """Returns ResNet-101: 44.5 million parameters, spread over all layers."""
    layers, channels, side = [convolution(112, 3, 64, (7, 7), extra=2)], 64, 56
    for stage, blocks in enumerate((3, 4, 23, 3)):
        width = 64 << stage
        for block in range(blocks):
            # The first 1x1 of a stage still sees the larger images where the 3x3 has the stride.
            before = side * 2 if stage and not block else side
            layers.append(convolution(before, channels, width, (1, 1), extra=2))
            layers.append(convolution(side, width, width, (3, 3), extra=2))
            layers.append(convolution(side, width, 4 * width, (1, 1), extra=2))
            if not block:
                layers.append(convolution(side, channels, 4 * width, (1, 1), extra=2))
            channels = 4 * width
        side //= 2
    return [*layers, dense(channels, 1000)]


Branch = Sequence[tuple[int, int, int]]
"""Convolutions one after the other, each (filters, height, width of the kernel)."""


def _branches(side: int, channels: int, branches: Sequence[Branch]) -> list[Layer]:
    """Returns the layers of branches that all read the same input."""
    layers = []
    for branch in branches:
        inputs = channels
        for filters, height, width in branch:
            layers.append(convolution(side, inputs, filters, (height, width), extra=1))
            inputs = filters
    return layers


def inception_v3() -> list[Layer]:
    """Returns Inception-V3: 23.8 million parameters, most in the last blocks.

    Strided convolutions count at the block's output, the 1x1 before them at its input side.
    """
    stem = ((149, 3, 32, 3), (147, 32, 32, 3), (147, 32, 64, 3), (73, 64, 80, 1), (71, 80, 192, 3))
    layers = [convolution(side, c, f, (k, k), extra=1) for side, c, f, k in stem]
    for channels, pooled in ((192, 32), (256, 64), (288, 64)):
        layers += _branches(35, channels, (
            [(64, 1, 1)], [(48, 1, 1), (64, 5, 5)], [(64, 1, 1), (96, 3, 3), (96, 3, 3)],
            [(pooled, 1, 1)]))  # fmt: skip
    layers += _branches(17, 288, ([(384, 3, 3)],))
    layers += _branches(35, 288, ([(64, 1, 1), (96, 3, 3)],)) + _branches(17, 96, ([(96, 3, 3)],))
    for width in (128, 160, 160, 192):
        layers += _branches(17, 768, (
            [(192, 1, 1)], [(width, 1, 1), (width, 1, 7), (192, 7, 1)],
            [(width, 1, 1), (width, 7, 1), (width, 1, 7), (width, 7, 1), (192, 1, 7)],
            [(192, 1, 1)]))  # fmt: skip
    layers += _branches(17, 768, ([(192, 1, 1)], [(192, 1, 1), (192, 1, 7), (192, 7, 1)]))
    layers += _branches(8, 192, ([(320, 3, 3)], [(192, 3, 3)]))
    for channels in (1280, 2048):
        layers += _branches(8, channels, (
            [(320, 1, 1)], [(384, 1, 1), (384, 1, 3)], [(448, 1, 1), (384, 3, 3), (384, 1, 3)],
            [(192, 1, 1)]))  # fmt: skip
        # Both ends of a fork read the same input: 1x3 as above, and 3x1.
        layers += 2 * _branches(8, 384, ([(384, 3, 1)],))
    return [*layers, dense(2048, 1000)]


def uniform(parameters: int, layers: int = 50) -> list[Layer]:
    """Returns a network of so many parameters in equal layers of equal work."""
    share, rest = divmod(parameters, layers)
    return [Layer(share + (1 if i < rest else 0), 1) for i in range(layers)]


NETWORKS = {"resnet101": resnet101, "inception_v3": inception_v3, "vgg16": vgg16}
TITLES = {"resnet101": "ResNet-101", "inception_v3": "Inception V3", "vgg16": "VGG-16"}
"""As the papers spell them."""
