"""`Downpour`: workers train on their own, and push to and fetch from a parameter server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.asynchronous.gradients import Gradient, Rows, copy, merged
from ringar.asynchronous.parameter_server import ParameterServer
from ringar.asynchronous.replica import Pulled, Replica
from ringar.asynchronous.replication import Replication, replicating
from ringar.asynchronous.staleness import UNLIMITED, BackupWorkers, HardSync
from ringar.collectives.host_call import host_call
from ringar.keras import keras_2
from ringar.keras.exchange import LocalGradients, Variables
from ringar.keras.optimizer import distribute
from ringar.keras.reduction import all_finite


def Downpour(  # the paper's name
    optimizer: str | keras.optimizers.Optimizer,
    server: ParameterServer,
    *,
    n_fetch: int = 1,
    n_push: int = 1,
    warm_start: int = 0,
    overlap: bool = False,
) -> keras.optimizers.Optimizer:
    """Make `optimizer` train a replica of a parameter server's model: Downpour SGD.

    Dean et al. 2012, section 4.1. In each step the worker applies its gradient to its own
    parameters by `optimizer`. After every `n_push` steps it pushes the sum of the gradients since
    the last push, and after every `n_fetch` steps it replaces its parameters by the server's.
    No worker waits for others, unless the server's `control` says so. A callback that changes the
    learning rate of `optimizer` changes that of the shards by the same factor, unless the server's
    optimizer follows a schedule, which counts the updates of a shard.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, or the name of one; in the paper, SGD. The object
            itself is returned. Gradients are clipped for the local step only: clip in the server's
            optimizer, too.
        server: the server of the model's trainable variables, on a rank that works.
        n_fetch: the steps between fetches.
        n_push: the steps between pushes.
        warm_start: the updates of the shards for which the first worker trains alone. The others
            then begin with these parameters, and leave out their first batch. They begin, too, when
            the first worker has ended or died.
        overlap: push and fetch in another thread, during the next steps. A fetch then returns the
            parameters that were read `n_fetch` steps before.

    Returns:
        `optimizer`, whose class is now `Distributed<class>`, as that of
        `ringar.DistributedOptimizer`.

    Raises:
        ValueError: `optimizer` is distributed already, or an argument is out of range, or does not
            fit the server's `control`.
        MismatchError: this rank does not work; in the first step, if the optimizer trains other
            variables than the server has.
        UnsupportedError: in the first step, if XLA compiles it for a GPU.
    """
    for name, value, least in (
        ("n_fetch", n_fetch, 1),
        ("n_push", n_push, 1),
        ("warm_start", warm_start, 0),
    ):
        if not isinstance(value, int) or value < least:
            raise ValueError(
                f"`{name}` must be a number of steps, {least} or more. Received: {value!r}"
            )
    if isinstance(server.control, BackupWorkers | HardSync) and (n_fetch, n_push, overlap) != (
        1,
        1,
        False,
    ):
        raise ValueError(
            f"{server.control} needs gradients of the newest version: n_fetch=1, n_push=1 and "
            f"overlap=False. Received: n_fetch={n_fetch}, n_push={n_push}, overlap={overlap}"
        )
    if warm_start and server.control.judge(server.workers.size()).limit(0) < UNLIMITED:
        raise ValueError(
            f"`warm_start` must be 0 with {server.control}, where the first worker would wait for "
            f"the others. Received: warm_start={warm_start}"
        )
    pace = Pace(
        server.replica,
        server.versions_of_variables(),
        n_fetch,
        n_push,
        warm_start if server.worker > 0 else 0,
        overlap,
    )
    optimizer = keras_2.optimizer_of(optimizer, "Downpour")
    replication = DownpourReplication(server, pace, _rate_of(optimizer))
    server.before_close(replication.finish)
    # Each worker has a pace of its own.
    description: dict[str, object] = {"function": "ringar.Downpour"}
    exchange = replicating(replication, LocalGradients(server.workers), description)
    return distribute(optimizer, exchange, "ringar.Downpour")


class Pace:
    """Push and fetch at intervals of steps: the part of a step that runs outside TensorFlow.

    Args:
        replica: this worker's end of the server.
        versions: the versions of the parameters with which the worker begins.
        n_fetch: the steps between fetches.
        n_push: the steps between pushes.
        warm_start: the updates that shards must have before the first step.
        overlap: whether another thread pushes and fetches.
    """

    def __init__(
        self,
        replica: Replica,
        versions: list[int],
        n_fetch: int,
        n_push: int,
        warm_start: int,
        overlap: bool,
    ) -> None:
        self._replica, self._versions = replica, versions
        self._n_fetch, self._n_push, self._warm_start = n_fetch, n_push, warm_start
        self._accrued: list[Gradient] = []
        self._oldest = versions  # of the accrued gradients
        self._thread = ThreadPoolExecutor(1, "ringar replica") if overlap else None
        self._pushing: Future[None] | None = None
        self._fetching: Future[Pulled] | None = None
        self.steps = 0

    def step(self, gradients: Sequence[Gradient], rate: float) -> bool:
        """Take the gradients of a step, push if it is time; return whether to fetch."""
        self.steps += 1
        if self.steps == 1 and self._warm_start:
            # Drop this gradient: it is of the parameters before the warm start.
            self._replica.wait_for_version(self._warm_start)
            return True
        self._accrue(gradients)
        if self.steps % self._n_push == 0:
            self._push(rate)
        return self.steps % self._n_fetch == 0

    def fetch(self) -> list[np.ndarray]:
        """Return the parameters to go on with."""
        if self._thread is None:
            return self._take(self._replica.pull())
        transfer = self._fetching or self._thread.submit(self._replica.pull)
        fetched = transfer.result()
        self._fetching = self._thread.submit(self._replica.pull)
        return self._take(fetched)

    def newest(self, rate: float) -> list[np.ndarray]:
        """Push the accrued gradients, and return the parameters after them."""
        self._push(rate)
        self._wait()
        self._fetching = None
        return self._take(self._replica.pull())

    def finish(self, rate: float) -> None:
        """Push the accrued gradients, and end the thread."""
        self._push(rate)
        self._wait()
        if self._thread is not None:
            self._thread.shutdown()

    def _take(self, pulled: Pulled) -> list[np.ndarray]:
        self._versions = pulled.versions
        return pulled.values

    def _push(self, rate: float) -> None:
        if not self._accrued:
            return
        accrued, self._accrued = self._accrued, []
        if self._thread is None:
            self._replica.push(accrued, self._oldest, rate)
            return
        self._wait()
        accrued = [copy(gradient) for gradient in accrued]
        self._pushing = self._thread.submit(self._replica.push, accrued, self._oldest, rate)

    def _wait(self) -> None:
        for transfer in (self._pushing, self._fetching):
            if transfer is not None:
                transfer.result()
        self._pushing = None

    def _accrue(self, gradients: Sequence[Gradient]) -> None:
        if self._accrued:
            self._accrued = [_sum(a, g) for a, g in zip(self._accrued, gradients, strict=True)]
            return
        self._oldest = self._versions
        keeps = self._n_push > 1
        self._accrued = [copy(gradient) if keeps else gradient for gradient in gradients]


class DownpourReplication(Replication):
    """Push the gradients of steps, and fetch parameters.

    Args:
        server: the server.
        pace: when to push and fetch.
        first_rate: the worker's learning rate in the beginning; None if it follows a schedule.
    """

    def __init__(self, server: ParameterServer, pace: Pace, first_rate: float | None) -> None:
        super().__init__(server)
        self._pace, self._first_rate = pace, first_rate
        self._is_due: Any = None

    def begin_step(self, gradients: Sequence[Any], variables: Variables, loss_scale: Any) -> None:
        """Hand the gradients over."""
        pushed = gradients if loss_scale is None else [_unscaled(g, loss_scale) for g in gradients]
        # With a loss scale, a step that overflows is left out.
        counts = True if loss_scale is None else all_finite(pushed)
        tensors, rebuild = _flat(pushed)

        def step(factor: np.ndarray, counts: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            gradients = [gradient if counts else None for gradient in rebuild(arrays)]
            return [np.asarray(self._pace.step(gradients, float(factor)))]

        rate = tf.cast(self._factor(), tf.float64)
        specs = [tf.TensorSpec([], tf.bool)]
        self._is_due = host_call(step, [rate, counts, *tensors], specs, "Downpour")[0]

    def end_step(self) -> None:
        """Fetch, if it is time."""
        self.replace(self._is_due, self._pace.fetch)

    def newest(self) -> list[np.ndarray]:
        """Push the accrued gradients, and fetch."""
        return self._pace.newest(float(self._factor()))

    def finish(self) -> None:
        """Push the accrued gradients, and end the thread."""
        self._pace.finish(float(self._factor()))

    def _factor(self) -> Any:
        """Return the factor by which the learning rate has changed since the first step."""
        if not self._first_rate or self._optimizer is None:
            return 1.0
        return keras.ops.convert_to_tensor(self._optimizer.learning_rate) / self._first_rate


def _rate_of(optimizer: Any) -> float | None:
    """Return the learning rate of an optimizer; None if it follows a schedule."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    if isinstance(optimizer._learning_rate, schedule):
        return None
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def _unscaled(gradient: Any, loss_scale: tf.Tensor) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = _unscaled(gradient.values, loss_scale)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(loss_scale, gradient.dtype)


def _flat(
    gradients: Sequence[Any],
) -> tuple[list[tf.Tensor], Callable[[Sequence[np.ndarray]], list[Gradient]]]:
    """Return the tensors of gradients, and a function that makes gradients of their values."""
    tensors: list[tf.Tensor] = []
    counts = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            parts = [tf.cast(gradient.indices, tf.int64), gradient.values]
        else:
            parts = [] if gradient is None else [tf.convert_to_tensor(gradient)]
        tensors += parts
        counts.append(len(parts))

    def rebuild(arrays: Sequence[np.ndarray]) -> list[Gradient]:
        values = iter(arrays)
        gradients: list[Gradient] = []
        for count in counts:
            if count == 0:
                gradients.append(None)
            else:
                gradients.append(next(values) if count == 1 else Rows(next(values), next(values)))
        return gradients

    return tensors, rebuild


def _sum(total: Gradient, gradient: Gradient) -> Gradient:
    """Return the sum of two gradients by one variable; the first may be changed."""
    if total is None or gradient is None:
        return copy(gradient) if total is None else total
    if isinstance(total, Rows) and isinstance(gradient, Rows):
        indices = np.concatenate([total.indices, gradient.indices])
        return merged(Rows(indices, np.concatenate([total.values, gradient.values])))
    dense, addend = (gradient, total) if isinstance(total, Rows) else (total, gradient)
    assert isinstance(dense, np.ndarray)
    result = dense.copy() if dense is gradient else dense
    if isinstance(addend, Rows):
        result[addend.indices] += addend.values
    else:
        result += addend
    return result
