"""Every rank raises a Keras-style error for an invalid cut, and none hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.sharding.grid import current
from tests.parallel.conftest import OpenGrid
from tests.parallel.partitioned import nets

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2, 4)]
K, R = nets.K, nets.R


@pytest.fixture
def grid(open_grid: OpenGrid, size: int) -> ringar.parallel.Grid:
    return open_grid(size)


def tile_of(*shape: int) -> Any:
    return R.CutPlane()(keras.Input(shape))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "whole images": (
        lambda: R.PartitionedConv2D(4, 3)(keras.Input((12, 12, 1))),
        r"must read tiles of a plane\. Received: an input that is not known to be one",
    ),
    "tiles that are cut again": (
        lambda: R.CutPlane()(tile_of(16, 12, 1)),
        r"must read whole images\. Received: a tile of 16 x 12",
    ),
    "unknown sizes": (
        lambda: R.CutPlane()(keras.Input((None, 12, 1))), r"must be known\. Received: \(None, 12\)",
    ),
    "vectors": (
        lambda: R.CutPlane()(keras.Input((12,))), r"must be images, of 4 dimensions",
    ),
    "fewer rows than ranks": (
        lambda: R.CutPlane()(keras.Input((1, 12, 1))),
        r"images with at least \d rows.*Received: 1 x 12",
    ),
    "an output of fewer rows than ranks": (
        lambda: R.PartitionedConv2D(4, 8)(tile_of(8, 9, 1)),
        r"an output with at least \d rows.*Received: 1 x 2.*GatherPlane",
    ),
    "a kernel larger than the plane": (
        lambda: R.PartitionedMaxPooling2D(9)(tile_of(8, 9, 1)), r"an output with at least.*0 x 1",
    ),
    "a layer that moves pixels": (
        lambda: R.GatherPlane()(K.UpSampling2D()(tile_of(12, 12, 1))),
        r'UpSampling2D "up_sampling2d.*" must treat each pixel by itself.*GatherPlane',
    ),
    "a convolution of Keras": (
        lambda: R.GatherPlane()(K.Conv2D(4, 3, name="whole")(tile_of(12, 12, 1))),
        r'Conv2D "whole" must treat each pixel by itself',
    ),
    "columns that are normalized": (
        lambda: R.GatherPlane()(K.LayerNormalization(axis=2)(tile_of(12, 12, 1))),
        r"LayerNormalization .* must treat each pixel by itself",
    ),
    "channels that are dropped": (
        lambda: R.GatherPlane()(K.SpatialDropout2D(0.5)(tile_of(12, 12, 1))),
        r"SpatialDropout2D .* must treat each pixel by itself",
    ),
    "an operation over rows": (
        lambda: R.GatherPlane()(keras.ops.softmax(tile_of(12, 12, 1), axis=1)),
        r"Softmax .* must treat each pixel by itself",
    ),
    "rows that are normalized": (
        lambda: R.GatherPlane()(R.SyncBatchNormalization(axis=1)(tile_of(12, 12, 1))),
        r"SyncBatchNormalization .* must treat each pixel by itself",
    ),
    "units that are split": (
        lambda: R.GatherPlane()(R.SplitDense(4, reads="whole")(tile_of(12, 12, 1))),
        r"SplitDense .* must treat each pixel by itself",
    ),
    "norms over rows": (
        lambda: R.PartitionedLocallyConnected2D(2, 3, kernel_constraint="max_norm")(
            tile_of(12, 12, 1)
        ),
        r"constraint of .*kernel must not take norms along the axes \(0, 1\).*MaxNorm",
    ),
    "statistics of one tile": (
        lambda: R.GatherPlane()(K.BatchNormalization()(tile_of(12, 12, 1))),
        r"by the statistics of all tiles.*SyncBatchNormalization",
    ),
    "statistics of one part": (
        lambda: R.GatherPlane()(R.SyncBatchNormalization(grid=current())(tile_of(12, 12, 4))),
        r"by the statistics of all tiles.*without a grid",
    ),
    "a penalty of activations of one tile": (
        lambda: R.GatherPlane()(K.ReLU(activity_regularizer="l2")(tile_of(12, 12, 1))),
        r"`activity_regularizer` must be None in ReLU",
    ),
    "planes of two sizes": (
        lambda: R.GatherPlane()(K.Add()([tile_of(12, 12, 1), tile_of(12, 1, 1)])),
        r"Add .* must get inputs that are all tiles of planes of one size",
    ),
    "a tile and a whole": (
        lambda: R.GatherPlane()(K.Multiply()([tile_of(12, 12, 1), keras.Input((1, 1, 1))])),
        r"must get inputs that are all tiles.*Received: a plane of 12 x 12 in .*, a whole tensor",
    ),
    "a layer for two planes": (
        lambda: [layer := R.PartitionedMaxPooling2D(), layer(tile_of(12, 12, 1)),
                 layer(tile_of(16, 12, 1))],
        r"must get the plane that it was built for, 12 x 12",
    ),
    "a tile of another size": (
        lambda: R.OwnTile(size=(40, 40))(keras.Input((12, 40, 1))),
        r"must be tiles of a plane of 40 x 40.*for part 0\. Received: 12 x 40",
    ),
    "strips that are no parts": (
        lambda: R.FlattenPlane()(tile_of(13, 12, 1)), r"strips of equally many rows",
    ),
    "a penalty of one tile": (
        lambda: R.PartitionedConv2D(4, 3, activity_regularizer="l2"),
        r"`activity_regularizer` must be None",
    ),
    "a size that is none": (
        lambda: R.OwnTile(size=(12, 0)), r"`size` must be two positive whole numbers",
    ),
    "a softmax over columns": (
        lambda: R.PartitionedConv2D(4, 3, activation="softmax", data_format="channels_first")(
            R.CutPlane(data_format="channels_first")(keras.Input((1, 12, 12)))
        ),
        r"softmax is over the last axis",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_model_that_cannot_be_cut(name: str, grid: ringar.parallel.Grid) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make()


def test_outputs_that_are_tiles(grid: ringar.parallel.Grid) -> None:
    images = keras.Input((12, 12, 1))
    x = R.PartitionedConv2D(2, 3, name="last")(R.CutPlane()(images))
    model = keras.Model(images, x)
    model.compile(ringar.DistributedOptimizer("sgd", grid=grid), "mse")
    with pytest.raises(ValueError, match=r'outputs.*must be whole.*"last"\. End with'):
        model.fit(np.ones((4, 12, 12, 1)), np.ones((4, 2)), verbose=0,
                  callbacks=[ringar.callbacks.Distributed()])  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, r: R.PartitionedConv2D(4, 3 + 2 * (r > 0), name="c")(x),
         r"PartitionedConv2D c: expected the same settings.kernel_size.*\(3, 3\) \(rank 0\)"),
        (lambda x, r: (R.PartitionedMaxPooling2D if r else R.PartitionedAveragePooling2D)(2)(x),
         r"expected the same class on every rank.*PartitionedMaxPooling2D"),
        (lambda x, r: R.CutPlane()(keras.Input((12, 12, 1 + r))),
         r"expected the same channels on every rank"),
        (lambda x, r: R.CutPlane()(keras.Input((12, 12, 1)[: 3 - r])),
         r"must be images, of 4 dimensions.*shape \(examples, 12, 12\) on rank 1"),
        (lambda x, r: R.CutPlane()(keras.Input((12 + r, 12, 1))),
         r"the same whole images on every rank.*OwnTile"),
    ],
)  # fmt: skip
def test_ranks_that_disagree(
    grid: ringar.parallel.Grid, rank: int, make: Any, message: str
) -> None:
    x = tile_of(12, 12, 1)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make(x, rank)
    assert float(ringar.allreduce(np.ones(1))[0]) == 1, "the ranks are still in step"


@pytest.mark.ranks(4)
def test_a_group_that_disagrees(open_grid: OpenGrid, rank: int) -> None:
    """The other group is told, too, and does not go on alone."""
    open_grid(2)
    with pytest.raises(ValueError, match=r"the same rows and columns in every.*of group 1"):
        R.OwnTile(size=(12, 8))(keras.Input((6 - (rank == 3), 8, 1)))
    assert float(ringar.allreduce(np.ones(1))[0]) == 1, "the ranks are still in step"


@pytest.mark.ranks(2)
def test_images_that_differ_within_a_group(grid: ringar.parallel.Grid, rank: int) -> None:
    images = keras.Input((8, 8, 1))
    x = R.PartitionedConv2D(2, 3)(R.CutPlane(name="begin")(images))
    model = keras.Model(images, R.PartitionedGlobalMaxPooling2D()(x))
    model.compile(ringar.DistributedOptimizer("sgd", grid=grid), "mse")
    x = np.random.default_rng(rank).normal(size=(4, 8, 8, 1))
    with pytest.raises(ValueError, match=r"must be the same on every rank.*layer begin"):
        model.fit(x, np.ones((4, 2)), verbose=0, callbacks=[ringar.callbacks.Distributed()])


def test_numbers_of_images_that_differ_within_a_group(
    grid: ringar.parallel.Grid, rank: int
) -> None:
    tile = R.CutPlane()(np.ones((2 + rank, 12, 8, 1), "float32"))
    for layer in (R.PartitionedConv2D(2, 3), R.GatherPlane()):
        with pytest.raises(tf.errors.InvalidArgumentError, match="number of examples must be the"):
            layer(tile)
        assert float(ringar.allreduce(np.ones(1))[0]) == 1, "the ranks are still in step"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ((2, 0), r"`model` must be a positive whole number, or two of them"),
        ((1, 2, 1), r"`model` must be a positive whole number, or two of them"),
        ((1, 3), r"`data` x `model` must be the number of ranks.*model=3"),
    ],
)
def test_tiles_that_do_not_fill_the_job(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ringar.parallel.Grid(data=1, model=model)


def test_outside_a_grid() -> None:
    ringar.parallel.Grid().close()
    for make in (R.CutPlane, R.GatherPlane, lambda: R.PartitionedConv2D(4, 3)):
        with pytest.raises(ValueError, match=r"must be used in a grid\. Received: none"):
            make()
    with pytest.raises(ValueError, match=r"must be used in a grid"):
        ringar.parallel.tile(np.ones((1, 4, 4, 1)))


def test_arrays_that_cannot_be_cut(grid: ringar.parallel.Grid) -> None:
    with pytest.raises(ValueError, match=r"must have 4 dimensions\. Received: shape \(4, 4\)"):
        ringar.parallel.tile(np.ones((4, 4)), grid)
    with pytest.raises(ValueError, match=r"at least as many rows.*Received: 1 x 4"):
        ringar.parallel.tile(np.ones((2, 1, 4, 1)), grid)
    with pytest.raises(ValueError, match=r"functional or sequential"):
        ringar.parallel.partition(keras.Model(), grid)


def test_compiled_functions_are_refused_by_name(grid: ringar.parallel.Grid) -> None:
    """Keras asks the layers for `jit_compile="auto"`."""
    assert not R.PartitionedConv2D(4, 3).supports_jit
    model = keras.Sequential([keras.Input((12, 12, 1)), R.CutPlane(), R.PartitionedConv2D(4, 3),
                              R.PartitionedGlobalMaxPooling2D()])  # fmt: skip
    model.compile("sgd", "mse")
    assert not model.jit_compile


@pytest.mark.ranks(2)
@pytest.mark.parametrize("rows", [8, 7])
def test_a_file_with_the_weights_of_one_part(
    grid: ringar.parallel.Grid, rank: int, rows: int, shared_tmp_path: Path
) -> None:
    """Even where another part has another size, which Keras would find first."""
    images = keras.Input((rows, 4, 1))
    x = R.PartitionedLocallyConnected2D(1, 3, padding="same")(R.CutPlane()(images))
    model = keras.Model(images, R.PartitionedGlobalMaxPooling2D()(x))
    path = shared_tmp_path / "part.keras"
    if rank == 0:
        model.save(path)
    ringar.barrier()
    if rank == 0:
        np.testing.assert_array_equal(keras.models.load_model(path).weights[0], model.weights[0])
    else:
        with pytest.raises(ValueError, match=r"the weights of part 1 of 2.*those of part 0 of 2"):
            keras.models.load_model(path)


@pytest.mark.ranks(2)
def test_an_optimizer_without_the_grid(grid: ringar.parallel.Grid) -> None:
    """Dropout behind the plane would differ within a model group."""
    model = keras.Sequential([keras.Input((8, 8, 1)), R.CutPlane(), R.PartitionedConv2D(2, 3),
                              R.PartitionedGlobalMaxPooling2D()])  # fmt: skip
    model.compile(ringar.DistributedOptimizer("sgd"), "mse")
    with pytest.raises(ValueError, match=r"none for CutPlane.*a layer on a grid.*grid=grid"):
        model.fit(np.ones((4, 8, 8, 1)), np.ones((4, 2)), verbose=0,
                  callbacks=[ringar.callbacks.Distributed()])  # fmt: skip
