"""Errors of sparse nets, raised on every rank before training begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import scipy.sparse

import ringar
from ringar.errors import RankError
from ringar.parallel import Grid, SparseNet, sparse
from tests.parallel.conftest import OpenGrid
from tests.research.sparse import nets

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(1, 2)]


@pytest.fixture
def grid(open_grid: OpenGrid, size: int) -> Grid:
    return open_grid(size)


def with_an_empty_row() -> list[Any]:
    layers = [layer.tolil() for layer in nets.random_layers()]
    layers[1][5] = 0
    return layers


def test_layers(grid: Grid) -> None:
    layers = nets.random_layers()
    for argument, message in (
        (with_an_empty_row(), r"`layers\[1\]` must have at least one entry in each row.*first.* 5"),
        ([layers[1], layers[0]], r"`layers\[1\]` must have a column for each of the 48 neurons"),
        ([layers[0].toarray()], r"`layers\[0\]` must be a sparse matrix of SciPy"),
        (layers[0], "`layers` must be a list of SciPy sparse matrices"),
        ([], "`layers` must be a list"),
        ([layers[0][:0]], r"`layers\[0\]` must have a row for each of its neurons"),
        ([layers[0] * np.nan], r"`layers\[0\]` must have finite weights"),
    ):
        with pytest.raises(ValueError, match=message):
            SparseNet(argument, grid=grid, partition="block")


def test_arguments(grid: Grid) -> None:
    layers = nets.random_layers()
    of_two = sparse.partition(layers[:2], grid.model, "block")
    of_five = sparse.partition(layers, 5, "block")
    for options, message in (
        ({"partition": "best"}, '`partition` must be one of "hypergraph", "block", "random"'),
        ({"partition": of_two}, "`partition` must have an owner for each neuron"),
        ({"partition": of_five}, "`partition` must have as many parts as the grid"),
        ({"kernel": "fast"}, "`kernel` must be one of"),
        ({"dtype": "float16"}, "`dtype` must be one of"),
        ({"activation": ["relu"]}, "`activation` must be a name, or a list of 3"),
        ({"activation": None}, "`activation` must be a name, or a list of 3"),
        ({"imbalance": 0.0}, "`imbalance` must be above 0 and finite"),
        ({"seed": -1}, "`seed` must be a whole number from 0"),
        ({"last_activation": "softmax"}, "treats each neuron by itself"),
        ({"activation": "sparsemax"}, "treats each neuron by itself"),
        ({"activation": "glu"}, "treats each neuron by itself"),
        ({"biases": [np.full(n, np.nan) for n in nets.UNITS[1:]]}, r"`biases\[0\]` must be finite"),
        ({"biases": [], "use_bias": False}, "`biases` must be None with use_bias=False"),
        ({"biases": [np.zeros(3)]}, "`biases` must have an array for each layer"),
        ({"threads": 0}, "`threads` must be None or an integer"),
    ):
        chosen: dict[str, Any] = {"grid": grid, "partition": "block", **options}
        with pytest.raises(ValueError, match=message):
            SparseNet(layers, **chosen)


def test_partitions() -> None:
    for owners, message in (
        ([np.array([0, 2])], "from 0 to 1"),
        ([np.array([0.0, 1.0])], "must be whole numbers"),
        ([np.array([0, -1])], "values from -1 to 0"),
    ):
        with pytest.raises(ValueError, match=message):
            sparse.Partition(tuple(owners), 2)
    with pytest.raises(ValueError, match="`parts` must be a positive whole number"):
        sparse.partition(nets.random_layers(), 0)
    with pytest.raises(ValueError, match="`method` must be one of"):
        sparse.partition(nets.random_layers(), 2, "best")
    for imbalance in (0.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="`imbalance` must be above 0 and finite"):
            sparse.partition(nets.random_layers(), 2, imbalance=imbalance)


def test_inputs_of_another_width(grid: Grid) -> None:
    net = nets.compiled_net(grid, partition="block")
    with pytest.raises(ValueError, match=r"must have the shape \(batch, 40\)"):
        net.predict(np.zeros((4, 39), np.float32), verbose=0)


@pytest.mark.ranks(2)
def test_one_rank_with_an_empty_row(grid: Grid, rank: int) -> None:
    """The other rank, whose net is fine, is told."""
    layers = with_an_empty_row() if rank == 1 else nets.random_layers()
    expected = ValueError if rank == 1 else RankError
    with pytest.raises(expected, match="must have at least one entry in each row"):
        SparseNet(layers, grid=grid, partition="block")


@pytest.mark.ranks(2)
def test_ranks_that_disagree(grid: Grid, rank: int) -> None:
    owners = sparse.partition(nets.random_layers(), 2, "random", seed=rank)
    fewer = nets.random_layers()[: 3 - rank]
    scaled = [layer * (1.0 + rank) for layer in nets.random_layers()]
    for arguments, subject in (
        ({"layers": fewer}, "number of layers"),
        ({"layers": nets.random_layers(seed=rank)}, r"pattern \(digest\) of layer 0"),
        ({"layers": scaled}, r"weights \(digest\) of layer 0"),
        ({"partition": ("block", "random")[rank]}, "partition"),
        ({"partition": owners}, "partition"),
        ({"seed": rank}, "partition"),
        ({"activation": ("relu", "tanh")[rank]}, "activations"),
        ({"biases": [np.full(n, rank) for n in nets.UNITS[1:]]}, r"biases \(digest\)"),
    ):
        layers = nets.random_layers()
        options: dict[str, Any] = {"layers": layers, "partition": "random", "grid": grid}
        with pytest.raises(ValueError, match=f"the same {subject}.*rank 0.*rank 1"):
            SparseNet(**{**options, **arguments})


@pytest.mark.ranks(2)
def test_other_examples(grid: Grid, rank: int) -> None:
    net = nets.compiled_net(grid, partition="block")
    x, y = nets.examples()
    callbacks = [ringar.callbacks.Distributed()]
    with pytest.raises(ValueError, match=r"The examples must be the same .* \(rank 1\)"):
        net.fit(x + rank, y, verbose=0, callbacks=callbacks)


@pytest.mark.ranks(2)
def test_a_plain_optimizer(grid: Grid) -> None:
    net = SparseNet(nets.random_layers(), grid=grid, partition="block")
    net.compile(keras.optimizers.SGD(), "mse")
    with pytest.raises(ValueError, match="compiled with optimizer=ringar.DistributedOptimizer"):
        net.fit(*nets.examples(), verbose=0, callbacks=[ringar.callbacks.Distributed()])


def test_draws() -> None:
    for draw, message in (
        (lambda: sparse.erdos_renyi([4], 2), "`units` must be at least two"),
        (lambda: sparse.erdos_renyi([4, 4], 5), "`connections` must be above 0 and at most 4"),
        (lambda: sparse.radix_net([[2, 2], [3]]), "`radices` must be systems"),
        (lambda: sparse.communities([8, 8], 9, 1), "`communities` must be positive"),
        (lambda: sparse.communities([8, 8], 4, 3), "`connections` must be above 0 and at most 2"),
        (lambda: sparse.communities([8, 8], 2, 2, outside=2), "`outside` must be from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            draw()
    assert scipy.sparse.issparse(sparse.erdos_renyi([4, 4], 2)[0])


def test_checkpoints_of_one_rank(open_grid: OpenGrid, tmp_path: Path) -> None:
    """Saving is collective on any grid, also where each rank has the whole net."""
    net = nets.compiled_net(open_grid(1), partition="block")
    model = keras.Sequential([keras.Input((nets.UNITS[0],)), net])
    model.compile(ringar.DistributedOptimizer("sgd", grid=net.grid), "mse")
    saving = keras.callbacks.ModelCheckpoint(str(tmp_path / "net.keras"))
    callbacks = [ringar.callbacks.Distributed(), saving]
    for candidate in (net, model):
        with pytest.raises(ValueError, match="that the first rank can save alone"):
            candidate.fit(*nets.examples(), verbose=0, callbacks=callbacks)
