"""Whole nets: five steps of `fit` equal those of one process; conversions to and fro."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests import one_process
from tests.comparison import assert_all_close
from tests.parallel.conftest import OpenGrid
from tests.parallel.partitioned import nets

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(1, 2, 3, 4)]
R = nets.R
SGD, ADAM = keras.optimizers.SGD, keras.optimizers.Adam


@pytest.fixture
def grid(open_grid: OpenGrid, size: int) -> ringar.parallel.Grid:
    """Tiles where there are four ranks, strips else."""
    return open_grid(nets.TILES[size][-1] if size == 4 else size)


def test_training_and_the_way_to_one_process_and_back(
    grid: ringar.parallel.Grid, open_grid: OpenGrid
) -> None:
    """Every layer; then merged, and cut again, with all weights and the optimizer's state."""
    reference = nets.train_whole(nets.seeded(nets.whole_net), ADAM(1e-3))
    model = nets.train(nets.seeded(nets.cut_net), ADAM(1e-3), grid)
    nets.assert_same_weights(model, reference)

    merged = ringar.parallel.merge(model)
    assert not any("Partitioned" in type(layer).__name__ for layer in merged.layers)
    x = nets.images(nets.BATCH)
    np.testing.assert_allclose(merged(x), model(x), atol=1e-5)
    for owner, expected_owner in ((merged, reference), (merged.optimizer, reference.optimizer)):
        assert_all_close(weights(owner), weights(expected_owner), atol=1e-5)

    open_grid(1)  # the current one, and not the one that the net is cut for
    again = ringar.parallel.split(ringar.parallel.partition(merged, grid), grid, layers=["fc1"])
    kinds = {type(layer).__name__ for layer in again.layers}
    assert {"CutPlane", "PartitionedConv2D", "PartitionedLocallyConnected2D", "GatherPlane",
            "PartitionedMaxPooling2D", "PartitionedGlobalAveragePooling2D", "SplitDense",
            "SyncBatchNormalization"} <= kinds  # fmt: skip
    np.testing.assert_allclose(again(x), model(x), atol=1e-5)
    for weight, expected in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        if weight.shape == expected.shape:  # all but those of fc2, which is whole now
            np.testing.assert_array_equal(weight.numpy(), expected.numpy(), err_msg=weight.path)


def weights(owner: Any) -> list[Any]:
    return list(owner.weights if isinstance(owner, keras.Model) else owner.variables)


@pytest.mark.slow
def test_a_file_of_the_merged_net_is_trained_on(
    grid: ringar.parallel.Grid, shared_tmp_path: Path
) -> None:
    reference = nets.train_whole(nets.seeded(nets.whole_net), SGD(0.05, momentum=0.9))
    merged = ringar.parallel.merge(
        nets.train(nets.seeded(nets.cut_net), SGD(0.05, momentum=0.9), grid)
    )
    path = shared_tmp_path / "merged.keras"
    if ringar.rank() == 0:
        merged.save(path)
    ringar.barrier()
    again = ringar.parallel.partition(keras.models.load_model(path), grid)
    share = ringar.data.shard(nets.dataset(), grid=grid).batch(nets.BATCH // grid.data)
    again.fit(share, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    one_process.fit(reference, nets.dataset().batch(nets.BATCH))
    nets.assert_same_weights(again, reference)


@pytest.mark.ranks(4)
def test_replicas_of_partitioned_nets(open_grid: OpenGrid) -> None:
    """Two model groups of two strips; norms for clipping are those of whole variables."""
    grid = open_grid(2)
    make = lambda: SGD(0.05, momentum=0.9, global_clipnorm=0.5)  # noqa: E731
    reference = nets.train_whole(nets.seeded(nets.whole_net), make())
    model = nets.train(nets.seeded(nets.cut_net), make(), grid)
    nets.assert_same_weights(model, reference)


def test_each_rank_is_given_its_strip(open_grid: OpenGrid, size: int) -> None:
    """No rank has whole images, and each has the dense weights of its strip alone."""
    grid = open_grid(size)
    count = nets.BATCH * nets.STEPS
    x, y = nets.images(count, (12, *nets.IMAGE[1:])), nets.labels(count)
    reference = nets.seeded(nets.whole_strip_net)
    reference.compile(SGD(0.05), nets.LOSS)
    one_process.fit(reference, x, y, batch_size=nets.BATCH, shuffle=False)
    strips = ringar.parallel.tile(x, grid)
    assert strips.shape == (count, 12 // size, *nets.IMAGE[1:])
    model = nets.seeded(nets.strip_net, strips.shape[1:])
    model.compile(ringar.DistributedOptimizer(SGD(0.05), grid=grid), nets.LOSS)
    model.fit(
        strips, y, batch_size=nets.BATCH, shuffle=False, verbose=0,
        callbacks=[ringar.callbacks.Distributed()],
    )  # fmt: skip
    nets.assert_same_weights(model, reference)
    merged = ringar.parallel.merge(model)
    assert merged.input_shape == (None, 12, *nets.IMAGE[1:])
    np.testing.assert_allclose(merged(x[:4]), reference(x[:4]), atol=1e-5)
    np.testing.assert_allclose(model(strips[:4]), reference(x[:4]), atol=1e-5)


@pytest.mark.ranks(2, 3)
def test_ranks_without_a_common_seed_train_one_net(grid: ringar.parallel.Grid, rank: int) -> None:
    keras.utils.set_random_seed(100 + rank)
    model = nets.train(nets.cut_net(), SGD(0.05), grid)
    merged = ringar.parallel.merge(model)
    everyone = ringar.allgather_object([w.numpy() for w in merged.weights])
    for other in everyone:
        assert_all_close(everyone[0], other)


@pytest.mark.ranks(2)
def test_a_model_written_as_a_python_function(grid: ringar.parallel.Grid) -> None:
    """Ranks find the plane when layers are built, without a graph."""

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.begin, self.end = R.CutPlane(), R.PartitionedGlobalMaxPooling2D()
            self.conv = R.PartitionedConv2D(4, 3, padding="same")

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return self.end(self.conv(self.begin(x)))

    model = nets.train(nets.seeded(Net), SGD(0.05), grid)

    def plain_net() -> keras.Model:
        x = keras.Input(nets.IMAGE)
        return keras.Model(x, nets.K.GlobalMaxPooling2D()(nets.K.Conv2D(4, 3, padding="same")(x)))

    reference = nets.train_whole(nets.seeded(plain_net), SGD(0.05))
    nets.assert_same_weights(model, reference)

    x = nets.images(2)
    decoded = tf.function(model, input_signature=[tf.TensorSpec((None, None, None, 3))])
    np.testing.assert_allclose(decoded(x), reference(x), atol=1e-5, err_msg="of unknown sizes")
    with pytest.raises(ValueError, match=r"the size that it was built for, 13 x 11.*15 x 11"):
        model(nets.images(2, (15, 11, 3)))


@pytest.mark.ranks(1, 2)
def test_layers_that_stay_whole(grid: ringar.parallel.Grid) -> None:
    """`partition` joins planes before what cannot work on tiles, and cuts only what it is told."""
    x = images = keras.Input((8, 8, 2))
    x = nets.K.Conv2D(3, 3, padding="same", name="one")(x)
    x = nets.K.UpSampling2D(2, name="up")(x)
    x = nets.K.Conv2D(3, 3, padding="same", name="two")(x)
    x = nets.K.GlobalMaxPooling2D(name="all")(x)
    reference = keras.Model(images, x)
    reference.compile("adam", "mse")  # and not trained, so that there is no state
    first_layer = ringar.parallel.partition(reference, grid, layers=["one"])
    kinds = {layer.name: type(layer).__name__ for layer in first_layer.layers}
    assert (kinds["one"], kinds["two"]) == ("PartitionedConv2D", "Conv2D")
    assert "GatherPlane" in kinds.values()
    all_layers = ringar.parallel.partition(reference, grid)
    kinds = {layer.name: type(layer).__name__ for layer in all_layers.layers}
    assert kinds["up"] == "UpSampling2D"
    assert kinds["all"] == "PartitionedGlobalMaxPooling2D"
    assert sorted(kinds.values()).count("CutPlane") == 2
    x = nets.images(3, (8, 8, 2))
    for model in (first_layer, all_layers, ringar.parallel.merge(all_layers)):
        assert model.optimizer is not None
        np.testing.assert_allclose(model(x), reference(x), atol=1e-5)
    with pytest.raises(ValueError, match=r"`layers` must be names.* Received: up"):
        ringar.parallel.partition(reference, grid, layers=["one", "up"])
