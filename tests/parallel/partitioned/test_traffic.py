"""Bytes that layers on tiles send, against pixels that are counted one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from tests.parallel.conftest import OpenGrid
from tests.parallel.partitioned import nets

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2, 3, 4)]
K, R = nets.K, nets.R
FLOAT = 4


def owner(size: tuple[int, int], tiles: tuple[int, int]) -> np.ndarray:
    """Which part has each pixel."""
    owners = np.zeros(size, int)
    for i, rows in enumerate(np.array_split(np.arange(size[0]), tiles[0])):
        for j, columns in enumerate(np.array_split(np.arange(size[1]), tiles[1])):
            owners[np.ix_(rows, columns)] = i * tiles[1] + j
    return owners


def crossing(layer: Any, size: tuple[int, int], tiles: tuple[int, int], sender: int) -> list[int]:
    """Pixels that `sender` sends forward, and those that it receives: tap by tap, no interval."""
    kernel = getattr(layer, "kernel_size", None) or layer.pool_size
    dilation = getattr(layer, "dilation_rate", (1, 1))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if layer.padding == "same":
        out = [-(-n // s) for n, s in zip(size, layer.strides, strict=True)]
    else:
        out = [(n - e) // s + 1 for n, e, s in zip(size, reach, layer.strides, strict=True)]
    front = [
        max((m - 1) * s + e - n, 0) // 2 if layer.padding == "same" else 0
        for m, s, e, n in zip(out, layer.strides, reach, size, strict=True)
    ]
    have, reads = owner(size, tiles), owner((out[0], out[1]), tiles)
    needs = set()
    for o in itertools.product(range(out[0]), range(out[1])):
        for tap in itertools.product(range(kernel[0]), range(kernel[1])):
            pixel = tuple(o[i] * layer.strides[i] - front[i] + tap[i] * dilation[i] for i in (0, 1))
            if all(0 <= p < n for p, n in zip(pixel, size, strict=True)):
                needs.add((pixel, int(reads[o])))
    across = [(int(have[pixel]), to) for pixel, to in needs if have[pixel] != to]
    return [sum(a == sender for a, _ in across), sum(b == sender for _, b in across)]


def steps(model: keras.Model, grid: ringar.parallel.Grid) -> dict[str, Any]:
    """Trains once, so that all is built and compared, and then counts."""
    nets.train(model, keras.optimizers.SGD(0.01), grid)
    share = ringar.data.shard(nets.dataset(), grid=grid).batch(nets.BATCH // grid.data)
    ringar.reset_stats()
    model.fit(share, verbose=0)
    return ringar.stats(by="layer")


def test_bytes_of_a_net(open_grid: OpenGrid, size: int) -> None:
    """Forward each pixel once per rank that needs it; backward the same pixels return."""
    grid = open_grid(nets.TILES[size][-1])
    model = nets.seeded(nets.cut_net)
    traffic = steps(model, grid)
    me, batch = grid.part, nets.BATCH // grid.data
    sizes = {"conv1": (13, 11, 3), "conv2": (7, 6, 6), "pool1": (7, 6, 6), "local": (7, 6, 6),
             "pool2": (6, 5, 5)}  # fmt: skip
    for name, (height, width, channels) in sizes.items():
        give, take = crossing(model.get_layer(name), (height, width), grid.tiles, me)
        if name == "conv1":
            take = 0  # images have no gradient
        bytes_ = nets.STEPS * batch * channels * FLOAT * (give + take)
        assert traffic[name].bytes == bytes_, name
        assert traffic[name].calls == nets.STEPS * (1 if name == "conv1" else 2), name
    tile = int((owner((6, 5), grid.tiles) == me).sum()) * 5 * batch * FLOAT
    assert traffic["join"].bytes == nets.STEPS * (size - 1) * tile
    assert traffic["join"].calls == nets.STEPS
    assert traffic["mean"].calls == nets.STEPS, "nothing goes back"
    total = 2 * (size - 1) * batch * 5 * FLOAT / size
    assert traffic["mean"].bytes == pytest.approx(nets.STEPS * total, abs=nets.STEPS)
    assert "cut" not in traffic


def test_kernels_of_one_pixel_send_nothing(open_grid: OpenGrid, size: int) -> None:
    grid = open_grid(size)
    x = np.ones((2, 9, 4, 3), "float32")
    y = R.CutPlane(grid=grid)(x)
    ringar.reset_stats()
    for layer in (R.PartitionedConv2D(4, 1, name="point", grid=grid),
                  R.PartitionedLocallyConnected2D(4, 1, name="here", grid=grid)):  # fmt: skip
        y = layer(y)
    assert not {"point", "here"} & set(ringar.stats(by="layer"))


def test_weights_of_a_tile_are_not_exchanged(open_grid: OpenGrid, size: int) -> None:
    """Kernels of convolutions are summed over all ranks, local weights over no rank."""
    grid = open_grid(size)
    images = keras.Input(nets.IMAGE)
    x = R.PartitionedConv2D(4, 3, padding="same", name="conv")(R.CutPlane()(images))
    x = R.PartitionedLocallyConnected2D(12, 3, padding="same", name="local")(x)
    model = keras.Model(images, R.PartitionedGlobalAveragePooling2D()(x))
    traffic = steps(model, grid)
    assert traffic["gradients"].calls == nets.STEPS
    control = 3  # numbers in front of a bucket (ringar.collectives.shares)
    kernels = (model.get_layer("conv").count_params() + control) * FLOAT
    expected = 2 * kernels * (size - 1) / size
    assert traffic["gradients"].bytes == pytest.approx(nets.STEPS * expected, abs=nets.STEPS * size)
    result = math.prod((13, 11)) * (9 * 4 * 12 + 12)
    local = ringar.allgather_object(int(model.get_layer("local").count_params()))
    assert sum(local) == result
