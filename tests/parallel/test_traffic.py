"""Which layers of a split net communicate, and how much: counters against arithmetic."""

from __future__ import annotations

import math

import keras
import pytest

import ringar
from tests.parallel import nets
from tests.parallel.conftest import OpenGrid

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2, 4)]

FLOAT = 4
CONTROL = 3 * FLOAT  # the control vector in front of a bucket (ringar.collectives.shares)
STEPS = 3


def steps(model: keras.Model, grid: ringar.parallel.Grid, examples_differ: bool = False) -> None:
    """Trains once, so that everything is built and sent, and then counts."""
    optimizer = keras.optimizers.SGD(0.01)
    nets.train(model, optimizer, grid, examples_differ=examples_differ, count=1)
    shards = ringar.size() if examples_differ else grid.data
    share = ringar.data.shard(nets.batches(STEPS), grid=None if examples_differ else grid)
    ringar.reset_stats()
    model.fit(share.batch(nets.BATCH // shards), verbose=0)


@pytest.fixture(params=[2, 4])
def grid(open_grid: OpenGrid, request: pytest.FixtureRequest) -> ringar.parallel.Grid:
    return open_grid(request.param)


def test_of_a_split_net(grid: ringar.parallel.Grid) -> None:
    model = nets.split_net()
    steps(model, grid)
    layers, m = ringar.stats(by="layer"), grid.model
    batch = nets.BATCH // grid.data

    def maps_of(name: str) -> int:
        """Bytes of the channels that one rank brings, forward; as many go backward."""
        shape = model.get_layer(name).input.shape[1:]
        return batch * math.prod(shape) * FLOAT

    assert not {"conv2", "conv4", "conv5"} & set(layers), "they read their own channels"
    for name in ("conv3", "fc6", "fc8"):
        assert layers[name].calls == 2 * STEPS
        assert layers[name].bytes == 2 * STEPS * (m - 1) * maps_of(name), name
    assert layers["join"].calls == STEPS, "nothing goes back through a join"
    assert layers["join"].bytes == STEPS * (m - 1) * maps_of("join")
    assert "conv1" not in layers, "images have no gradient"


def test_of_gradients(grid: ringar.parallel.Grid) -> None:
    """Parts are reduced over their data set alone; everything here is cut."""
    model = nets.split_net()
    steps(model, grid)
    part_bytes, d = model.count_params() * FLOAT + CONTROL, grid.data
    traffic = ringar.stats(by="layer").get("gradients")
    if d == 1:
        assert traffic is None
    else:
        assert traffic is not None
        assert traffic.bytes == STEPS * 2 * part_bytes * (d - 1) // d


def test_of_the_hybrid(grid: ringar.parallel.Grid) -> None:
    model = nets.hybrid_net()
    steps(model, grid, examples_differ=True)
    layers, m, examples = ringar.stats(by="layer"), grid.model, nets.BATCH // ringar.size()
    features = model.get_layer("fc6").input.shape[1]
    assert layers["fc6"].bytes == STEPS * 2 * (m - 1) * examples * features * FLOAT
    assert layers["fc8"].bytes == STEPS * 2 * (m - 1) * examples * m * (32 // m) * FLOAT
    rows = examples * m * (nets.CLASSES // m) * FLOAT
    assert layers["join"].bytes == STEPS * 2 * (m - 1) * rows // m
    conv1, n = model.get_layer("conv1").count_params() * FLOAT, ringar.size()
    parts = model.count_params() * FLOAT - conv1 + CONTROL
    conv1 += CONTROL
    expected = 2 * conv1 * (n - 1) // n + 2 * parts * (grid.data - 1) // grid.data
    assert layers["gradients"].bytes == pytest.approx(STEPS * expected, abs=STEPS * n)
