"""A saved net resumes under any other partition and number of ranks."""

from __future__ import annotations

import io
from pathlib import Path

import keras
import numpy as np
import pytest
import scipy.sparse

import ringar
from ringar.parallel import SparseNet
from tests.parallel.conftest import OpenGrid
from tests.research.sparse import nets

pytestmark = pytest.mark.usefixtures("initialized")


def test_goes_on_with_another_partition(open_grid: OpenGrid, shared_tmp_path: Path) -> None:
    """On as many ranks, and on each rank alone; with the state of the optimizer."""
    path = shared_tmp_path / "net.npz"
    grid = open_grid(ringar.size())
    net = nets.compiled_net(grid, keras.optimizers.Adam(0.01), partition="block")
    nets.fit(net)
    net.save(path)
    saved = nets.flat(net)
    nets.fit(net)
    for parts, method in ((ringar.size(), "random"), (1, "hypergraph")):
        other = SparseNet.load(path, partition=method, grid=open_grid(parts))
        np.testing.assert_array_equal(nets.flat(other), saved)
        assert int(other.optimizer.iterations) == nets.STEPS
        nets.fit(other)
        np.testing.assert_allclose(nets.flat(other), nets.flat(net), atol=1e-5)


def test_is_a_file_of_scipy_matrices(open_grid: OpenGrid, shared_tmp_path: Path) -> None:
    path = shared_tmp_path / "net.npz"
    net = SparseNet(nets.random_layers(), grid=open_grid(ringar.size()), partition="random")
    net.save(path)
    ringar.barrier()
    with np.load(path) as arrays:
        for number, layer in enumerate(nets.random_layers()):
            parts = [arrays[f"{name}_{number}"] for name in ("data", "indices", "indptr")]
            matrix = scipy.sparse.csr_array(tuple(parts), shape=layer.shape)
            assert abs(matrix - layer).max() == 0
            assert not arrays[f"bias_{number}"].any()
    assert not SparseNet.load(path, grid=net.grid, partition="block").compiled


def test_of_a_net_in_part(open_grid: OpenGrid, shared_tmp_path: Path) -> None:
    """Without biases, and with a layer that is not trained: it has no slots."""
    path = shared_tmp_path / "net.npz"
    grid = open_grid(ringar.size())
    net = nets.compiled_net(grid, keras.optimizers.Adam(0.01), use_bias=False, partition="block")
    net.layers[0].trainable = False
    nets.fit(net)
    net.save(path)
    other = SparseNet.load(path, grid=grid, partition="random")
    assert other.biases() is None
    for trained_net in (net, other):
        nets.fit(trained_net)
    np.testing.assert_allclose(nets.flat(other), nets.flat(net), atol=1e-5)
    np.testing.assert_array_equal(other.matrices()[0].data, nets.random_layers()[0].data)


class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        raise InterruptedError


@pytest.mark.ranks(2)
def test_goes_on_from_a_backup(open_grid: OpenGrid, shared_tmp_path: Path) -> None:
    """Each rank has parts of a size of its own."""
    grid = open_grid(ringar.size())
    x, y = nets.examples()

    def run(*additions: keras.callbacks.Callback) -> np.ndarray:
        net = nets.compiled_net(grid, keras.optimizers.Adam(0.01), partition="random")
        callbacks = [ringar.callbacks.Distributed(), *additions]
        net.fit(x, y, nets.BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        return nets.flat(net)

    folder = str(shared_tmp_path / "backup")
    with pytest.raises(InterruptedError):
        run(keras.callbacks.BackupAndRestore(folder), Interrupt())
    resumed = run(keras.callbacks.BackupAndRestore(folder))
    np.testing.assert_array_equal(resumed, run())


def test_errors_are_on_all_ranks(open_grid: OpenGrid, shared_tmp_path: Path) -> None:
    grid = open_grid(ringar.size())
    net = SparseNet(nets.random_layers(), grid=grid, partition="block")
    with pytest.raises(OSError):
        SparseNet.load(shared_tmp_path / "nothing.npz", grid=grid)
    with pytest.raises(OSError):
        net.save(shared_tmp_path / "no folder" / "net.npz")
    path = shared_tmp_path / "net.npz"
    net.save(path)
    archive_bytes = path.read_bytes()
    damaged = bytearray(archive_bytes)
    damaged[len(damaged) // 3] ^= 0xFF
    array = io.BytesIO()
    np.save(array, np.ones(3))
    archive = io.BytesIO()
    np.savez(archive, data_0=np.ones(3))
    contents = (
        b"",
        array.getvalue(),
        archive.getvalue(),
        archive_bytes[: len(archive_bytes) // 2],
        bytes(damaged),
    )
    for number, content in enumerate(contents):
        path = shared_tmp_path / f"{number}.npz"
        if ringar.rank() == 0:
            path.write_bytes(content)
        with pytest.raises((OSError, ValueError), match=r"a whole file that SparseNet\.save"):
            SparseNet.load(path, grid=grid)
    with pytest.raises(ringar.errors.UnsupportedError, match=r"net\.save\(path\)"):
        net.get_config()
