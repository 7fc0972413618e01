"""Split layers as Keras layers: configs, deep nets, models in models, what a closed grid leaves."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import ringar
from tests.parallel import nets
from tests.parallel.conftest import OpenGrid

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(1, 2)]
layers = keras.layers


@pytest.fixture
def grid(open_grid: OpenGrid, size: int) -> ringar.parallel.Grid:
    return open_grid(size)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ringar.layers.SplitConv2D(8, (3, 5), strides=2, reads="all", activation="relu"),
        lambda: ringar.layers.SplitConv2D(8, 3, reads="own", groups=4, padding="same"),
        lambda: ringar.layers.SplitDense(12, reads="own", writes="addend", use_bias=False),
        lambda: ringar.layers.SplitDense(12, reads="examples", kernel_regularizer="l2"),
        lambda: ringar.layers.GroupedDense(12, groups=3),
        lambda: ringar.layers.GroupedConv2D(12, 3, groups=3),
        lambda: ringar.layers.Gather(axis=1),
        lambda: ringar.layers.Sum(),
        lambda: ringar.layers.ReturnExamples(),
    ],
)  # fmt: skip
def test_a_config_makes_the_same_layer(grid: ringar.parallel.Grid, make: Any) -> None:
    """It has the whole layer's sizes, so that it suits any grid."""
    layer = make()
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.get_config() == config
    if hasattr(layer, "kernels_argument"):
        assert config[layer.kernels_argument] == layer.whole_kernels
    data = keras.saving.serialize_keras_object(layer)
    assert type(keras.saving.deserialize_keras_object(data)) is type(layer)


def test_ranks_that_have_made_other_layers_before(grid: ringar.parallel.Grid, rank: int) -> None:
    """Keras numbers layers without a name in each process."""
    for _ in range(rank):
        layers.Dense(1)
        ringar.layers.Gather()
        ringar.layers.SyncBatchNormalization()
        ringar.layers.SplitDense(2 * ringar.size())
    image = keras.Input((6,))
    x = ringar.layers.SplitDense(8 * ringar.size(), reads="whole")(image)
    x = ringar.layers.Gather()(ringar.layers.SplitDense(4 * ringar.size())(x))
    x = ringar.layers.SyncBatchNormalization()(x)
    model = keras.Model(image, x)
    y = model(np.ones((3, 6), "float32"), training=True)
    assert y.shape == (3, 4 * ringar.size())


@pytest.mark.ranks(2)
def test_deep_nets_with_branches_are_followed(grid: ringar.parallel.Grid) -> None:
    """Each tensor once: there are 2^100 ways through each half of this one."""
    image = keras.Input((6,))
    maps = image
    for _ in range(100):
        maps = layers.Add()([maps, layers.ReLU()(maps)])
    x = ringar.layers.SplitDense(8, reads="whole")(maps)
    for _ in range(100):
        x = layers.Add()([x, layers.ReLU()(x)])
    model = keras.Model(image, ringar.layers.Gather()(x))
    assert model.output.shape == (None, 8)


def test_a_split_model_within_a_model(grid: ringar.parallel.Grid) -> None:
    """Its layers are the same, and merge takes it apart."""
    inner = nets.split_net()
    image = keras.Input(nets.IMAGE)
    outer = keras.Model(image, layers.Dense(3)(inner(layers.Rescaling(0.5)(image))))
    merged = ringar.parallel.merge(outer)
    np.testing.assert_allclose(nets.outputs(merged), nets.outputs(outer), atol=1e-5)
    assert len(merged.weights) == len(outer.weights)


def test_variables_can_be_marked_without_a_graph(grid: ringar.parallel.Grid) -> None:
    norm = layers.BatchNormalization()
    norm.build((None, 4))
    ringar.parallel.own(norm, grid)
    from ringar.sharding.cut import cut_of

    cuts = [cut_of(variable) for variable in norm.variables]
    assert len(cuts) == 4
    for cut in cuts:
        assert (cut is None) == (grid.model == 1)
        assert cut is None or cut.axis == 0
    with pytest.raises(ValueError, match=r"must treat each channel by itself"):
        ringar.parallel.own(layers.Dense(3), grid)


def test_there_is_no_current_grid_once_it_is_closed() -> None:
    grid = ringar.parallel.Grid()
    assert repr(grid) == f"Grid(data={ringar.size()}, model=1)"
    grid.close()
    with pytest.raises(ValueError, match=r"must be used in a grid"):
        ringar.layers.SplitDense(4)
