"""Nets are merged, saved, loaded and split over another number of parts, amid training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from tests import one_process
from tests.comparison import assert_all_close
from tests.parallel import nets
from tests.parallel.conftest import OpenGrid
from tests.plugin import fast_if, run_job

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2, 4)]

TOLERANCE = 1e-5
layers = keras.layers


def net(split: bool, groups: int = 1) -> keras.Model:
    """With batch normalization and response normalization within the split."""
    keras.utils.set_random_seed(3)
    parts = ringar.layers
    image = x = keras.Input(nets.IMAGE)
    conv: dict[str, Any] = {"padding": "same", "use_bias": False}
    if split:
        x = parts.SplitConv2D(16, 3, reads="whole", name="conv1", **conv)(x)
        x = parts.SyncBatchNormalization(name="norm", epsilon=0.1)(x)
    else:
        x = layers.Conv2D(16, 3, name="conv1", **conv)(x)
        x = layers.BatchNormalization(name="norm", epsilon=0.1)(x)
    x = layers.PReLU(shared_axes=[1, 2], name="prelu")(x)
    x = parts.LocalResponseNormalization(groups=1 if split else groups, name="response")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    if split:
        x = parts.SplitConv2D(16, 3, reads="own", activation="relu", name="conv2")(x)
    else:
        x = layers.Conv2D(16, 3, activation="relu", groups=groups, name="conv2")(x)
    x = layers.Flatten()(layers.Permute((3, 1, 2))(x))
    if split:
        x = parts.SplitDense(32, reads="own", activation="relu", name="fc6")(x)
        x = parts.SplitDense(nets.CLASSES, reads="all", name="fc8")(x)
        x = parts.Gather(name="join")(x)
    else:
        x = parts.GroupedDense(32, groups=groups, activation="relu", name="fc6")(x)
        x = layers.Identity(name="join")(layers.Dense(nets.CLASSES, name="fc8")(x))
    return keras.Model(image, layers.Activation("linear", name="last")(x))


def optimizer() -> Any:
    return keras.optimizers.Adam(1e-3)


def assert_same(model: keras.Model, other: keras.Model) -> None:
    assert_all_close(model.weights, other.weights, atol=TOLERANCE)


def trained_whole(groups: int, count: int) -> keras.Model:
    return nets.train_whole(net(False, groups), optimizer(), count=count)


def test_a_merged_net_is_the_one_process_net(open_grid: OpenGrid) -> None:
    grid = open_grid(2)
    merged = ringar.parallel.merge(nets.train(net(True), optimizer(), grid))
    reference = trained_whole(2, nets.STEPS)
    kinds = [[type(layer).__name__ for layer in model.layers] for model in (merged, reference)]
    assert kinds[0] == kinds[1]
    assert [w.path for w in merged.weights] == [w.path for w in reference.weights]
    assert_same(merged, reference)
    assert_all_close(merged.optimizer.variables, reference.optimizer.variables, atol=TOLERANCE)
    np.testing.assert_allclose(nets.outputs(merged), nets.outputs(reference), atol=TOLERANCE)


@pytest.mark.parametrize(("before", "after"), [
    (2, 1), fast_if(False, 2, 2), (2, 4), (4, 2), fast_if(False, 1, 2)
])  # fmt: skip
def test_training_goes_on_with_another_number_of_parts(
    before: int, after: int, size: int, rank: int, shared_tmp_path: Path
) -> None:
    """Saved by rank 0 after five steps, loaded by all, five more: as if nothing had happened."""
    if max(before, after) > size:
        pytest.skip(f"{before} to {after} parts, {size} ranks")
    if size > 2 and 1 in (before, after):
        pytest.skip("on two ranks")
    grid = ringar.parallel.Grid(model=before)
    model = nets.train(net(True), optimizer(), grid, count=5)
    merged = ringar.parallel.merge(model)
    file = shared_tmp_path / "model.keras"
    if rank == 0:
        merged.save(file)
    ringar.barrier()
    grid.close()

    grid = ringar.parallel.Grid(model=after)
    loaded = keras.models.load_model(file)
    again = ringar.parallel.split(loaded, grid)
    np.testing.assert_allclose(nets.outputs(again), nets.outputs(loaded), atol=TOLERANCE)
    kernels = {layer.name: layer.kernel.shape for layer in again.layers if hasattr(layer, "kernel")}
    assert kernels["conv1"][-1] == 16 // after
    assert kernels["fc8"][-1] == nets.CLASSES // after
    nets.fit(again, grid, count=5)
    reference = trained_whole(before, 5)
    one_process.fit(reference, nets.batches(5).batch(nets.BATCH))
    assert_same(ringar.parallel.merge(again), reference)
    grid.close()


def test_layers_to_cut_can_be_named(open_grid: OpenGrid) -> None:
    grid = open_grid(2)
    reference = nets.whole_net(1)
    part = ringar.parallel.split(reference, grid, layers=["fc6", "fc8"])
    assert part.get_layer("conv1").kernel.shape == reference.get_layer("conv1").kernel.shape
    assert part.get_layer("fc6").kernel.shape[1] == 16
    np.testing.assert_allclose(nets.outputs(part), nets.outputs(reference), atol=TOLERANCE)
    with pytest.raises(ValueError, match=r"`layers` must be names of layers.*conv9"):
        ringar.parallel.split(reference, grid, layers=["conv9"])


def test_layers_that_need_all_maps_get_them(open_grid: OpenGrid) -> None:
    """A layer normalization, a softmax, a sum of a split and a whole input, two outputs."""
    keras.utils.set_random_seed(3)
    image = keras.Input(nets.IMAGE)
    x = layers.Conv2D(8, 3, activation="relu", padding="same")(image)
    y = layers.LayerNormalization()(x)
    z = layers.Add()([x, y])
    z = layers.GlobalAveragePooling2D()(layers.Conv2D(7, 3)(z))  # 7 kernels: not cut
    model = keras.Model(image, [layers.Dense(4, activation="softmax")(z), x])
    grid = open_grid(2)
    part = ringar.parallel.split(model, grid)
    batch = np.random.default_rng(0).normal(size=(4, *nets.IMAGE)).astype("float32")
    assert_all_close(part(batch), model(batch), atol=TOLERANCE)


def test_models_without_a_graph_are_refused() -> None:
    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(ValueError, match=r"`model` must be a functional or sequential model"):
        ringar.parallel.merge(Own())


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_grouped_layers_are_those_of_keras(padding: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 9, 9, 8)).astype("float32")
    layer = ringar.layers.GroupedConv2D(12, 3, groups=4, strides=2, padding=padding)
    reference = layers.Conv2D(12, 3, groups=4, strides=2, padding=padding)
    reference.build(x.shape)
    layer.build(x.shape)
    layer.set_weights(reference.get_weights())
    np.testing.assert_allclose(layer(x), reference(x), atol=TOLERANCE)
    dense = ringar.layers.GroupedDense(6, groups=2)
    dense.build(x.shape)
    kernel, bias = (np.asarray(w) for w in dense.weights)
    expected = np.concatenate([x[..., :4] @ kernel[:, :3], x[..., 4:] @ kernel[:, 3:]], -1) + bias
    np.testing.assert_allclose(dense(x), expected, atol=TOLERANCE)


@pytest.mark.ranks(2)
def test_a_merged_net_loads_without_ringar(
    open_grid: OpenGrid, rank: int, shared_tmp_path: Path
) -> None:
    grid = open_grid(2)
    merged = ringar.parallel.merge(nets.train(nets.split_net(), optimizer(), grid, count=1))
    if rank == 0:
        merged.save(shared_tmp_path / "model.keras")
        np.save(shared_tmp_path / "outputs.npy", nets.outputs(merged))
        program = (
            "import sys; sys.modules['ringar'] = None\n"
            "import keras, numpy as np\n"
            "model = keras.models.load_model('model.keras')\n"
            "x = np.random.default_rng(7).normal(size=(8, 15, 15, 3)).astype('float32')\n"
            "np.testing.assert_allclose(model(x), np.load('outputs.npy'), atol=1e-5)\n"
            "model.fit(x, np.zeros(8), verbose=0)\n"
        )
        run_job(None, program, cwd=shared_tmp_path).check()
    ringar.barrier()


@pytest.mark.ranks(2)
def test_a_file_of_another_part_is_refused(
    open_grid: OpenGrid, rank: int, shared_tmp_path: Path
) -> None:
    """Saved by a rank that has some of the units, and a tile of the local weights."""
    grid = open_grid(2)
    images = keras.Input((4, 4, 1))
    tile = ringar.layers.PartitionedLocallyConnected2D(2, 3, padding="same", grid=grid)(
        ringar.layers.CutPlane(grid=grid)(images)
    )
    flat = keras.layers.Flatten()(ringar.layers.GatherPlane(grid=grid)(tile))
    split = ringar.layers.SplitDense(4, reads="whole", grid=grid)
    model = keras.Model(images, ringar.layers.Gather(grid=grid)(split(flat)))
    files = [shared_tmp_path / f"{part}.weights.h5" for part in range(2)]
    model.save_weights(files[rank])
    before = model.get_weights()
    ringar.barrier()
    with pytest.raises(ValueError, match=f"part {rank} of 2.* those of part {1 - rank} of 2"):
        model.load_weights(files[1 - rank])
    model.set_weights([0 * value for value in before])
    model.load_weights(files[rank])
    assert_all_close(model.get_weights(), before)
