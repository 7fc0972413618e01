"""Every rank raises a Keras-style error for an invalid grid or split, and none hangs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import ringar
from tests.parallel import nets
from tests.parallel.conftest import OpenGrid

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2, 4)]
layers = keras.layers


@pytest.fixture
def grid(open_grid: OpenGrid) -> ringar.parallel.Grid:
    return open_grid(2)


def image() -> Any:
    return keras.Input(nets.IMAGE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3}, r"`data` x `model` must be the number of ranks\. Received: data=None"),
        ({"data": 2, "model": 8}, r"must be the number of ranks\. Received: data=2, model=8"),
        ({"model": 0}, r"`model` must be a positive whole number\. Received: model=0"),
        ({"data": 1.5}, r"`data` must be a positive whole number\. Received: data=1\.5"),
    ],
)
def test_a_grid_that_does_not_fill_the_job(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ringar.parallel.Grid(**arguments)


def test_kernels_that_the_parts_do_not_divide(grid: ringar.parallel.Grid) -> None:
    with pytest.raises(ValueError, match=r"`filters` must be divisible.*filters=7, model=2"):
        ringar.layers.SplitConv2D(7, 3)
    with pytest.raises(ValueError, match=r"`units` must be divisible.*units=9, model=2"):
        ringar.layers.SplitDense(9)


@pytest.mark.parametrize("name", ["SplitConv2D", "SplitDense", "Gather", "Sum", "ReturnExamples"])
def test_a_layer_outside_a_grid(name: str) -> None:
    arguments = {"SplitConv2D": (8, 3), "SplitDense": (8,)}.get(name, ())
    with pytest.raises(ValueError, match=rf"{name} must be used in a grid\. Received: none"):
        getattr(ringar.layers, name)(*arguments)


def test_a_grid_that_was_closed() -> None:
    grid = ringar.parallel.Grid(model=2)
    grid.close()
    with pytest.raises(ValueError, match=r"`grid` must be open"):
        ringar.layers.SplitDense(8, grid=grid)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reads": "none"}, r'`reads` must be one of "own", "all", "whole", "examples"'),
        ({"writes": "all"}, r'`writes` must be one of "own", "addend"'),
        ({"writes": "addend", "reads": "all"}, r'`writes="addend"` must go with reads="own"'),
        ({"writes": "addend", "reads": "own", "activation": "relu"}, r"`activation` must be None"),
        ({"activation": "softmax"}, r"`activation` must treat each channel by itself"),
        ({"reads": "own", "groups": 3}, r"`groups` must be divisible by the number of parts"),
        ({"groups": 3}, r"`groups` must divide the number of parts, or be divisible by it"),
    ],
)
def test_arguments_of_a_layer(
    grid: ringar.parallel.Grid, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ringar.layers.SplitDense(24, **arguments)


def test_what_a_layer_reads_must_be_there(grid: ringar.parallel.Grid) -> None:
    for reads in ("own", "all"):
        with pytest.raises(
            ValueError, match=rf'`reads="{reads}"` must be used on channels that are'
        ):
            ringar.layers.SplitConv2D(8, 3, reads=reads)(image())
    x = ringar.layers.SplitConv2D(8, 3, reads="whole")(image())
    for reads in ("whole", "examples"):
        with pytest.raises(ValueError, match=rf'`reads="{reads}"` must be used on an input that'):
            ringar.layers.SplitConv2D(8, 3, reads=reads)(x)
    with pytest.raises(ValueError, match=r"Gather must end a split\. Received: an input of"):
        ringar.layers.Gather()(image())
    with pytest.raises(ValueError, match=r'Sum must follow a layer with writes="addend"'):
        ringar.layers.Sum()(x)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: layers.Flatten(), r"must not mix the channels of a split"),
        (lambda: layers.Conv2D(8, 1), r"must treat each channel by itself"),
        (lambda: layers.LayerNormalization(), r"must treat each channel by itself"),
        (lambda: layers.Softmax(), r"must treat each channel by itself"),
        (lambda: layers.Activation("softmax"), r"must treat each channel by itself"),
        (lambda: layers.Reshape((13 * 13, 4)), r"must treat each channel by itself"),
    ],
    ids=["flatten", "conv", "norm", "softmax", "activation", "reshape"],
)
def test_layers_that_mix_maps_within_a_split(
    grid: ringar.parallel.Grid, layer: Any, message: str
) -> None:
    x = ringar.layers.SplitConv2D(8, 3, reads="whole")(image())
    x = layer()(x)
    with pytest.raises(ValueError, match=message):
        ringar.layers.Gather()(x)


@keras.saving.register_keras_serializable(package="tests")
class Halved(keras.layers.Layer):
    """Treats each channel by itself, which ringar cannot know."""

    def call(self, inputs: Any) -> Any:
        return inputs / 2


class Declared(Halved):
    is_channelwise = True


class DeclaredAsBefore(Halved):
    treats_maps_alone = True


def test_layers_that_are_declared_to_treat_each_channel_by_itself(
    grid: ringar.parallel.Grid,
) -> None:
    x = ringar.layers.SplitConv2D(8, 3, reads="whole")(image())
    with pytest.raises(ValueError, match=r"set its attribute `is_channelwise = True`"):
        ringar.layers.Gather()(Halved()(x))
    assert ringar.layers.Gather()(Declared()(x)).shape[-1] == 8


def test_the_former_name_of_is_channelwise(grid: ringar.parallel.Grid) -> None:
    x = DeclaredAsBefore()(ringar.layers.SplitConv2D(8, 3, reads="whole")(image()))
    with pytest.warns(DeprecationWarning, match=r"now called `is_channelwise`"):
        output = ringar.layers.Gather()(x)
    assert output.shape[-1] == 8


def test_a_model_within_a_split(grid: ringar.parallel.Grid) -> None:
    inner = keras.Sequential([keras.Input((13, 13, 4)), layers.ReLU()], name="inner")
    x = inner(ringar.layers.SplitConv2D(8, 3, reads="whole")(image()))
    with pytest.raises(ValueError, match=r'Sequential "inner" must get inputs that every rank has'):
        ringar.layers.Gather()(x)


class AsAFunction(keras.Model):
    """A model without a graph."""

    def call(self, inputs: Any) -> Any:
        return inputs * 2.0


def test_a_model_without_a_graph_within_another(grid: ringar.parallel.Grid) -> None:
    """It gives what every rank has whole, as any layer does behind a join."""
    x = ringar.layers.Gather()(ringar.layers.SplitConv2D(8, 3, reads="whole")(image()))
    x = ringar.layers.SplitConv2D(8, 3, reads="whole")(AsAFunction()(x))
    assert ringar.layers.Gather()(x).shape[-1] == 8


def test_an_addend_that_is_not_summed(grid: ringar.parallel.Grid) -> None:
    x = ringar.layers.SplitConv2D(8, 3, reads="whole")(image())
    x = ringar.layers.SplitConv2D(8, 3, reads="own", writes="addend", name="half")(x)
    with pytest.raises(ValueError, match=r'Sum must follow a layer with writes="addend"'):
        ringar.layers.Sum()(layers.ReLU()(x))
    with pytest.raises(ValueError, match=r'"half" with writes="addend" must be followed by'):
        ringar.layers.SplitConv2D(8, 3, reads="whole")(x)


def test_a_split_that_is_not_ended(grid: ringar.parallel.Grid) -> None:
    inputs = image()
    x = ringar.layers.SplitConv2D(16, 15, reads="whole", name="open")(inputs)
    model = keras.Model(inputs, layers.Flatten()(x))
    model.compile(ringar.DistributedOptimizer("sgd", grid=grid), nets.LOSS)
    with pytest.raises(ValueError, match=r"outputs of a model must be whole.*of layer open"):
        nets.fit(model, grid)


def test_an_optimizer_without_the_grid(grid: ringar.parallel.Grid) -> None:
    model = nets.split_net()
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), nets.LOSS)
    with pytest.raises(ValueError, match=r"a layer on a grid.*grid=grid"):
        nets.fit(model, grid)


def test_another_grid_than_the_layers_have(grid: ringar.parallel.Grid) -> None:
    model, other = nets.split_net(), ringar.parallel.Grid(model=2)
    with pytest.raises(ValueError, match=r"`grid` must be the one that the layers were made in"):
        nets.train(model, keras.optimizers.SGD(0.1), other)
    other.close()


@pytest.mark.parametrize("name", ["Lamb", "Adafactor"])
def test_optimizers_that_go_by_whole_variables(grid: ringar.parallel.Grid, name: str) -> None:
    optimizer = getattr(keras.optimizers, name)(0.1)
    with pytest.raises(ValueError, match=r"`optimizer` must treat each element by itself"):
        nets.train(nets.split_net(), optimizer, grid)


def test_clipping_of_accumulated_gradients(grid: ringar.parallel.Grid) -> None:
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=1.0, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match=r"`gradient_accumulation_steps` must be None with"):
        nets.train(nets.split_net(), optimizer, grid)


@pytest.mark.parametrize("count", [1, 3], ids=["one step", "several steps"])
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_other_examples_on_the_ranks_of_a_group(
    grid: ringar.parallel.Grid, count: int, eager: bool
) -> None:
    """The usual mistake: shares of the ranks, where those of the groups were meant."""
    model = nets.split_net()
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1), grid=grid)
    model.compile(optimizer, nets.LOSS, run_eagerly=eager)
    share = ringar.data.shard(nets.batches(count)).batch(nets.BATCH // ringar.size())
    with pytest.raises(ValueError, match=r"must be the same on every rank of a model group\. Re"):
        model.fit(share, callbacks=[ringar.callbacks.Distributed()], verbose=0)
    ringar.barrier()


def test_batches_in_another_order(grid: ringar.parallel.Grid, rank: int) -> None:
    model = nets.split_net()
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1), grid=grid)
    model.compile(optimizer, nets.LOSS)
    x = np.random.default_rng(0).normal(size=(4, *nets.IMAGE)).astype("float32")
    y = np.zeros(4, "int32")
    with pytest.raises(ValueError, match=r"must be the same.*ringar\.data\.shard"):
        model.fit(x[:: -1 if rank % 2 else 1], y, shuffle=False, verbose=0,
                  callbacks=[ringar.callbacks.Distributed()])  # fmt: skip
    ringar.barrier()
