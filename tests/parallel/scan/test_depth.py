"""Ranks that share the backward pass of one net train it as one process does."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.errors import OutOfMemoryError
from ringar.parallel.scan import depth, elements
from ringar.parallel.scan.route import Route
from ringar.parallel.scan.sequential import Sequential
from ringar.parallel.scan.stages import Chain
from tests.comparison import assert_all_close, assert_same_everywhere
from tests.parallel.scan import nets
from tests.plugin import run_job

pytestmark = [pytest.mark.usefixtures("initialized")]

layers = keras.layers

Exchange = Callable[[Any], list[Any]]
Result = tuple[list[float], list[np.ndarray]]


def train(model: Any, x: np.ndarray, y: np.ndarray, **options: Any) -> Result:
    """The loss of an epoch, whose last batch is smaller, and the weights after it."""
    optimizer = options.pop("optimizer", None) or keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, "mse", **options)
    losses = model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0).history["loss"]
    return losses, model.get_weights()


def together(make: Callable[..., Any], **options: Any) -> Any:
    return make(process_set=ringar.global_process_set, **options)


def assert_same(result: Result, expected: Result, exchange: Exchange, tolerance: float) -> None:
    np.testing.assert_allclose(result[0], expected[0], rtol=tolerance)
    assert_all_close(result[1], expected[1], rtol=tolerance, atol=tolerance)
    assert_same_everywhere([weight.tobytes() for weight in result[1]], exchange)


@functools.cache
def reference(name: str) -> Result:
    return train(nets.build(name, levels=0), *nets.data(name, rows=10), run_eagerly=True)


@pytest.mark.parametrize("name", ["convolutions", "deep", "dropout"])
@pytest.mark.parametrize("levels", [0, 1, None])
def test_training(name: str, levels: int | None, exchange: Exchange) -> None:
    model = together(functools.partial(nets.build, name), levels=levels)
    result = train(model, *nets.data(name, rows=10), run_eagerly=True)
    assert_same(result, reference(name), exchange, 1e-5)


@pytest.mark.parametrize(
    ("name", "levels", "options"),
    [("convolutions", None, {}), ("dropout", 0, {"steps_per_execution": 2})],
)
def test_functions(
    name: str, levels: int | None, options: dict[str, Any], exchange: Exchange
) -> None:
    model = together(functools.partial(nets.build, name), levels=levels)
    result = train(model, *nets.data(name, rows=10), **options)
    # Of several steps in one Keras reports another mean of the losses.
    losses = result[0] if options else reference(name)[0]
    assert_same(result, (losses, reference(name)[1]), exchange, 1e-5)


@pytest.mark.parametrize("levels", [0, 1, None])
def test_float64_and_pruned_kernels(levels: int | None, exchange: Exchange) -> None:
    shape, random = (7, 7, 2), np.random.default_rng(0)

    def net() -> list[Any]:
        return [
            layers.Conv2D(3, 3, activation="relu", padding="same", dtype="float64"),
            layers.MaxPooling2D(dtype="float64"), layers.Conv2D(4, 2, dtype="float64"),
            layers.Activation("tanh", dtype="float64"), layers.Flatten(dtype="float64"),
            layers.Dense(6, activation="sigmoid", dtype="float64"),
            layers.Dense(6, dtype="float64"), layers.Dense(4, dtype="float64"),
        ]  # fmt: skip

    def make(**options: Any) -> Any:
        return Sequential([keras.Input(shape, dtype="float64"), *net()], **options)

    models = make(levels=0), together(make, levels=levels)
    pruned = [w * (random.random(w.shape) < 0.2) for w in models[0].get_weights()]
    x, y = random.normal(size=(10, *shape)), random.normal(size=(10, 4))
    results = []
    for model in models:
        model.set_weights(pruned)
        results.append(train(model, x, y, run_eagerly=True))
    assert_same(results[1], results[0], exchange, 1e-10)


def _two(**options: Any) -> Any:
    keras.utils.set_random_seed(5)
    net = [layers.Dense(3, kernel_regularizer="l2"), layers.Dense(4, bias_regularizer="l1")]
    return Sequential([keras.Input((5,)), *net], **options)


def _twice(**options: Any) -> Any:
    keras.utils.set_random_seed(5)
    twice = layers.Dense(5, activation="tanh")
    frozen = layers.Dense(5, activation="relu", trainable=False)
    return Sequential(
        [keras.Input((5,)), twice, frozen, layers.Dense(5), twice, layers.Dense(4)], **options
    )


@pytest.mark.parametrize(
    "make",
    [_two, _twice, functools.partial(nets.build, "shapes"),
     functools.partial(nets.build, "first layers without weights"),
     functools.partial(nets.build, "last layers without weights")],
    ids=["more ranks than stages", "a layer twice, one frozen", "shapes", "first", "last"],
)  # fmt: skip
def test_nets(make: Callable[..., Any], exchange: Exchange) -> None:
    x, y = nets.data("dense", rows=10)
    model = together(make, levels=0)
    if model.input_shape != (None, 5):
        x = np.random.default_rng(0).normal(size=(10, *model.input_shape[1:])).astype(np.float32)
    if model.output_shape != (None, 4):
        y = np.ones((10, *model.output_shape[1:]), np.float32)
    expected = train(make(levels=0), x, y, run_eagerly=True)
    assert_same(train(model, x, y, run_eagerly=True), expected, exchange, 1e-5)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 30])
def test_stretches(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any number of ranks: every position is some rank's, and the shares are even."""
    model = nets.build("deep")
    route = Route.of(Chain.of(model.layers, (5,)))
    assert sorted(set(route.weight_positions.values())) == list(range(0, 23, 2))
    ranks = ringar.ProcessSet(range(size))
    shares = []
    for rank in range(size):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        share = depth.Depth(Chain.of(model.layers, (5,)), ranks).share(route)
        assert share.is_first == (rank == min(size, 23) - 1)
        assert share.has_successor == (0 < rank < 23)
        shares.append(share.positions)
    assert [i for share in reversed(shares) for i in share] == list(range(23))
    assert {len(share) for share in shares} <= {23 // size, -(-23 // size)}


def test_distributed_optimizers(exchange: Exchange) -> None:
    """An average of equal gradients is what they are; a sum is not."""
    model = together(functools.partial(nets.build, "deep"), levels=0)
    sgd = functools.partial(keras.optimizers.SGD, 0.1, momentum=0.9)
    data = nets.data("deep", rows=10)
    result = train(model, *data, optimizer=ringar.DistributedOptimizer(sgd()), run_eagerly=True)
    assert_same(result, reference("deep"), exchange, 1e-5)
    distributed = ringar.DistributedOptimizer(sgd(), op=ringar.Sum)
    with pytest.raises(ValueError, match=r"must average gradients.*Received: one with op=.*Use it"):
        train(model, *data, optimizer=distributed, run_eagerly=True)


@pytest.mark.ranks(4)
def test_two_sets_with_examples_of_their_own(rank: int, exchange: Exchange) -> None:
    """Data parallel over pairs of ranks that share the depth."""
    sets = [ringar.add_process_set([0, 1]), ringar.add_process_set([2, 3])]
    x, y = nets.data("deep", rows=8)
    model = nets.build("deep", levels=0, process_set=sets[rank // 2])
    part = slice(4 * (rank // 2), 4 * (rank // 2) + 4)
    for net, rows in ((model, part), (nets.build("deep", levels=0), slice(0, 8))):
        sgd = keras.optimizers.SGD(0.1)
        net.compile(sgd if net is not model else ringar.DistributedOptimizer(sgd), "mse")
        net.fit(x[rows], y[rows], batch_size=8, epochs=3, shuffle=False, verbose=0)
    weights = model.get_weights()
    assert_same(([], weights), ([], net.get_weights()), exchange, 1e-5)
    for process_set in sets:
        ringar.remove_process_set(process_set)


def test_saving(tmp_path: Path) -> None:
    """The process set is not saved, and can be set again."""
    model = together(functools.partial(nets.build, "dense"), levels=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.process_set, loaded.levels) == (None, 1)
    loaded.process_set = ringar.global_process_set
    data = nets.data("dense", rows=10)
    weights = [train(net, *data, run_eagerly=True)[1] for net in (loaded, model)]
    assert_all_close(*weights)


# What is refused --------------------------------------------------------------------------------


@pytest.mark.ranks(2, 3, 4)
def test_ranks_that_differ(rank: int, exchange: Exchange) -> None:
    """All get the error, and can go on."""
    x, y = nets.data("dense", rows=10)
    model = together(functools.partial(nets.build, "dense"), levels=0)
    examples = r"the same examples, .*\(rank 1\).*Shuffle with a seed"
    for inputs in (x + rank, x[: 4 - rank]):
        with pytest.raises(ValueError, match=examples):
            train(model, inputs, y[: len(inputs)], run_eagerly=True)
    model.set_weights([weight + (rank == 1) for weight in model.get_weights()])
    with pytest.raises(ValueError, match=r"the same layers or weights, since .*broadcast_variab"):
        train(model, x, y, run_eagerly=True)
    ringar.broadcast_variables(model.weights)
    with pytest.raises(tf.errors.InvalidArgumentError, match=examples):
        train(model, x + rank, y)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    result: Result = [], model.get_weights()
    assert_same(result, result, exchange, 0)


@pytest.mark.ranks(2, 3)
def test_dropout_that_differs(rank: int) -> None:
    keras.utils.set_random_seed(1)
    net = [keras.Input((5,)), layers.Dense(6), layers.Dropout(0.5, seed=rank), layers.Dense(4)]
    model = Sequential(net, process_set=ringar.global_process_set)
    with pytest.raises(ValueError, match="the same random numbers, since .*keras.utils.set_random"):
        train(model, *nets.data("dense"), run_eagerly=True)


def test_arguments(rank: int, size: int) -> None:
    values: tuple[Any, ...] = (2, [0, 1], "all")
    for process_set in values:
        with pytest.raises(TypeError, match=r"`process_set` must be a ringar.ProcessSet.*Received"):
            nets.build("dense", process_set=process_set)
    model = nets.build("dense", process_set=ringar.ProcessSet([(rank + 1) % size]))
    if size > 1:
        with pytest.raises(
            ValueError, match=r"by the ranks of its `process_set`.*Received: a call"
        ):
            train(model, *nets.data("dense"))


@pytest.mark.ranks(1)
def test_matrices_that_are_too_large_to_travel() -> None:
    element = elements.Element(types.SimpleNamespace(shape=(2**31, 1), nnz=5), False, "some")
    with pytest.raises(OutOfMemoryError, match=r"at most 2\^31 - 1 rows.*layers some.*smaller bat"):
        depth.pack(element)


DIES = """
import os, signal
import ringar
from ringar.parallel.scan import depth
from tests.parallel.scan import nets

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that the others get to say what they saw
ringar.init(deadline=30)
model = nets.build("dense", levels=0, process_set=ringar.global_process_set)
model.compile("sgd", "mse", run_eagerly=True)
model.fit(*nets.data("dense"), verbose=0)
if ringar.rank() == 1:
    depth.Depth.exchange = die
try:
    model.fit(*nets.data("dense"), verbose=0)
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""


@pytest.mark.ranks(1)
@pytest.mark.job
def test_a_rank_that_dies() -> None:
    """In the middle of a step: the other one gets an error, and does not hang."""
    job = run_job(2, DIES, launcher_args=["--no-prefix"], deadline=60).check(137)
    assert re.search(r'AbortedError .*recv "scan_depth/1" from rank 1 .*has died', job.stdout), job
