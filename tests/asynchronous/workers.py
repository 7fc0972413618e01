"""Workers for the tests of shards: a small problem in NumPy, its gradients, and its shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ringar.asynchronous.shard import Push, Rows, Shard
from ringar.asynchronous.staleness import StalenessControl

FEATURES, TARGETS, WORDS = 5, 3, 12

#: Per number of shards, what each has: a variable, its first row and the row after its last.
LAYOUTS: dict[int, list[list[tuple[int, int, int]]]] = {
    1: [[(0, 0, FEATURES), (1, 0, TARGETS), (2, 0, WORDS)]],
    2: [[(2, 0, WORDS)], [(0, 0, FEATURES), (1, 0, TARGETS)]],
    3: [[(0, 0, FEATURES), (2, 4, WORDS)], [(1, 0, TARGETS)], [(2, 0, 4)]],
}


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1)


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.02)


def adagrad() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adagrad(0.05)


def initial() -> list[np.ndarray]:
    """Weights, biases and an embedding."""
    rng = np.random.default_rng(1)
    shapes = [(FEATURES, TARGETS), (TARGETS,), (WORDS, TARGETS)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def gradients(worker: int, step: int, values: list[np.ndarray]) -> list[Any]:
    """Gradients of a least squares problem, for the batch of a worker's step."""
    weights, biases, table = values
    rng = np.random.default_rng([worker, step])
    x = rng.normal(size=(4, FEATURES)).astype(np.float32)
    words = rng.integers(0, WORDS, 4)
    y = np.sin(x[:, :TARGETS])
    error = (x @ weights + biases + table[words] - y) / np.float32(len(x))
    rows, places = np.unique(words, return_inverse=True)
    of_rows = np.zeros((len(rows), TARGETS), np.float32)
    np.add.at(of_rows, places, error)
    return [x.T @ error, error.sum(0), Rows(rows.astype(np.int64), of_rows)]


def split(arrays: list[Any], shards: int) -> list[list[Any]]:
    """Cut values or gradients of the variables for a number of shards."""
    return [[_part(arrays[v], start, stop) for v, start, stop in of] for of in LAYOUTS[shards]]


def joined(values: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Put the values of all shards together."""
    arrays = [np.full_like(value, np.nan) for value in initial()]
    for of_shard, pieces in zip(values, LAYOUTS[len(values)], strict=True):
        for value, (variable, start, stop) in zip(of_shard, pieces, strict=True):
            arrays[variable][start:stop] = value
    return arrays


def of_shards(worker: int, step: int, values: list[list[np.ndarray]]) -> list[list[Any]]:
    """The gradients as `replay` and `simulate` want them."""
    return split(gradients(worker, step, joined(values)), len(values))


def make_shards(
    count: int,
    control: StalenessControl,
    workers: int,
    optimizer: Callable[[], keras.optimizers.Optimizer] = sgd,
) -> list[Shard]:
    return [
        Shard(number, values, optimizer(), control, workers)
        for number, values in enumerate(split(initial(), count))
    ]


def vector_shard(
    control: StalenessControl, workers: int, optimizer: keras.optimizers.Optimizer | None = None
) -> Shard:
    """A shard with one variable, two zeros, and by default SGD of rate 1."""
    values = [np.zeros(2, np.float32)]
    return Shard(0, values, optimizer or keras.optimizers.SGD(1.0), control, workers, ["layer/w"])


def push(worker: int, step: int, version: int, *gradient: float) -> Push:
    """A push to `vector_shard`."""
    return Push(worker, step, version, [np.array(gradient, np.float32)])


def exponential(generator: np.random.Generator, worker: int) -> float:
    """Draw the duration of a step; worker 0 is three times as slow as the others."""
    return float(generator.exponential(3.0 if worker == 0 else 1.0))


def equal_bits(first: list[list[np.ndarray]], second: list[list[np.ndarray]]) -> bool:
    shards = zip(first, second, strict=True)
    pairs = [pair for arrays in shards for pair in zip(*arrays, strict=True)]
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def _part(array: Any, start: int, stop: int) -> Any:
    if isinstance(array, Rows):
        mask = (array.indices >= start) & (array.indices < stop)
        return Rows(array.indices[mask] - start, array.values[mask])
    return array[start:stop]
