"""Sparse logistic regression on a window, for `benchmarks.asynchronous.hogwild`.

    python -m benchmarks.asynchronous.hogwild_worker OPTIONS

The weights lie on rank 0. An update takes one example: it reads the weights of its features, and
adds the step of stochastic gradient descent to them. Each way has a turn in a job, begins with
weights of zero, and sees each example once; two ranks share the examples.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness.worker import read_options, write_report

RATE = 0.5
ROOT = 0


class Examples(NamedTuple):
    """Examples whose features are sparse, and the labels -1 and 1."""

    rows: np.ndarray  # int64 [examples, nonzeros], none twice in an example
    values: np.ndarray  # float32 [examples, nonzeros]
    labels: np.ndarray  # float32 [examples]


def make_examples(examples: int, features: int, nonzeros: int) -> Examples:
    """Returns the same examples on every rank; labels follow from weights with noise."""
    rng = np.random.default_rng(1)
    block = features // nonzeros  # one feature out of each block, so that none comes twice
    rows = rng.integers(0, block, (examples, nonzeros)) + block * np.arange(nonzeros)
    values = rng.normal(size=(examples, nonzeros)).astype(np.float32)
    weights = rng.normal(size=features).astype(np.float32)
    margins = np.einsum("ij,ij->i", values, weights[rows]) / math.sqrt(nonzeros)
    labels = np.where(rng.random(examples) < 1 / (1 + np.exp(-4 * margins)), 1, -1)
    return Examples(rows, values / np.float32(math.sqrt(nonzeros)), labels.astype(np.float32))


def loss_of(weights: np.ndarray, data: Examples) -> float:
    """Returns the mean logistic loss."""
    margins = data.labels * np.einsum("ij,ij->i", data.values, weights[data.rows])
    return float(np.mean(np.logaddexp(0, -margins, dtype=np.float64)))


class SharedMutex(AbstractContextManager[None]):
    """A lock of the processes that open one file: a POSIX mutex in memory that they share."""

    _BYTES, _PROCESS_SHARED = 64, 1

    def __init__(self, path: Path, is_first: bool) -> None:
        self._library = ctypes.CDLL(None)
        if is_first:
            path.write_bytes(bytes(2 * self._BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * self._BYTES)
        self._mutex = ctypes.byref(ctypes.c_char.from_buffer(self._memory))
        if is_first:
            attributes = ctypes.byref(ctypes.c_char.from_buffer(self._memory, self._BYTES))
            self._library.pthread_mutexattr_init(attributes)
            self._library.pthread_mutexattr_setpshared(attributes, self._PROCESS_SHARED)
            self._library.pthread_mutex_init(self._mutex, attributes)

    def __enter__(self) -> None:
        self._library.pthread_mutex_lock(self._mutex)

    def __exit__(self, *_: object) -> None:
        self._library.pthread_mutex_unlock(self._mutex)


def train(
    window: Any, examples: list[Any], atomic: bool, mutex: AbstractContextManager[None] | None
) -> None:
    """Takes a step for each example, which is its rows, its values and its label."""
    gather, scatter_add, exp = window.gather, window.scatter_add, math.exp
    buffer = np.empty(examples[0][0].size, np.float32) if examples else None
    around = mutex or contextlib.nullcontext()
    for rows, values, label in examples:
        if mutex is None:
            weights = gather(ROOT, rows, None, buffer)
            step = RATE * label / (1.0 + exp(label * float(values.dot(weights))))
            scatter_add(ROOT, rows, step * values, lock=False, atomic=atomic)
            continue
        with around:
            weights = gather(ROOT, rows, None, buffer)
            step = RATE * label / (1.0 + exp(label * float(values.dot(weights))))
            scatter_add(ROOT, rows, step * values, lock=False, atomic=atomic)


def serial(examples: list[Any], features: int) -> np.ndarray:
    """Returns the weights of one process, computed by NumPy alone."""
    weights = np.zeros(features, np.float32)
    for rows, values, label in examples:
        step = RATE * label / (1.0 + math.exp(label * float(values.dot(weights[rows]))))
        weights[rows] += step * values
    return weights


def measure_peer(data: Examples, features: int) -> tuple[float, float]:
    """Returns the updates per second of scikit-learn's SGDClassifier, and its loss."""
    import scipy.sparse
    from sklearn.linear_model import SGDClassifier

    examples, nonzeros = data.rows.shape
    starts = np.arange(0, examples * nonzeros + 1, nonzeros)
    matrix = scipy.sparse.csr_matrix(
        (data.values.ravel().astype(np.float64), data.rows.ravel(), starts), (examples, features)
    )
    peer = SGDClassifier(
        loss="log_loss", penalty=None, learning_rate="constant", eta0=RATE, max_iter=1, tol=None,
        fit_intercept=False, shuffle=False,
    )  # fmt: skip
    start = time.perf_counter()
    peer.fit(matrix, data.labels)
    took = time.perf_counter() - start
    return examples / took, loss_of(peer.coef_[0].astype(np.float32), data)


class Ways:
    """The ways of training, on all ranks of the job.

    Attributes:
        names: `one rank` first.
    """

    names = ("one rank", "racy", "atomic", "locked")

    def __init__(self, options: dict[str, Any]) -> None:
        import ringar

        self._features = options["features"]
        self.data = make_examples(options["examples"], self._features, options["nonzeros"])
        self.examples = list(
            zip(
                list(self.data.rows), list(self.data.values), self.data.labels.tolist(), strict=True
            )
        )
        self._rank, self._size = ringar.rank(), ringar.size()
        path = Path(options["folder"], "mutex")
        if self._rank == ROOT:
            SharedMutex(path, True)
        ringar.barrier()
        self._mutex = SharedMutex(path, False)

    def measure(self, name: str) -> tuple[float, np.ndarray]:
        """Returns the updates per second of all ranks, and the weights."""
        import ringar

        length = self._features if self._rank == ROOT else 0
        share = self.examples[self._rank :: self._size]
        if name == "one rank":
            share = self.examples if self._rank == ROOT else []
        mutex = self._mutex if name == "locked" else None
        with ringar.Window(length, "float32", name="weights") as window:
            ringar.barrier()
            start = time.perf_counter()
            train(window, share, name == "atomic", mutex)
            ringar.barrier()
            took = time.perf_counter() - start
            weights = window.get(ROOT)
            ringar.barrier()
        return len(self.examples) / took, weights


def main() -> None:
    options = read_options()
    import ringar

    ringar.init(intra_op_threads=1, inter_op_threads=1)
    ways = Ways(options)
    reference = serial(ways.examples, options["features"])
    ways.measure("atomic")  # not counted: the first turn of a job is slower
    rates: dict[str, float] = {}
    losses: dict[str, float] = {}
    errors = 0
    for name in ways.names:
        rates[name], weights = ways.measure(name)
        losses[name] = loss_of(weights, ways.data)
        errors += name == "one rank" and not np.array_equal(weights, reference)
    if ringar.rank() == ROOT:
        rate, loss = measure_peer(ways.data, options["features"])
        rates["scikit-learn"], losses["scikit-learn"] = rate, loss
    ringar.barrier()
    figures = {"rates": rates, "losses": losses, "serial": loss_of(reference, ways.data)}
    write_report(options, ringar.rank(), {**figures, "wrong": errors})
    ringar.shutdown()


if __name__ == "__main__":
    main()
