"""Parameter averaging, and methods on top of it: `LocalSGD`, `DiLoCo`, `EASGD`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras

from ringar.asynchronous.elastic_replication import ElasticReplication
from ringar.asynchronous.local_steps import Steps, local_steps
from ringar.asynchronous.replication import replicating
from ringar.asynchronous.rules import (
    Averaging,
    ElasticAveraging,
    OuterOptimizer,
    Rule,
    SlowMomentum,
)
from ringar.asynchronous.server_arguments import settings
from ringar.asynchronous.staleness import BackupWorkers, HardSync, SoftSync
from ringar.collectives import Average
from ringar.collectives.compression import Compression, Compressor
from ringar.collectives.powersgd import PowerSGD
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras.exchange import Reducer
from ringar.keras.optimizer import distribute, is_distributed
from ringar.keras.reduction import Reduction

if TYPE_CHECKING:
    from typing import Literal

    from ringar.asynchronous.parameter_server import ParameterServer


@dataclass(frozen=True)
class SlowMo:
    """Name the slow momentum of `ringar.LocalSGD(outer=...)` (Wang et al. 2020, algorithm 1).

    At the end of a period that began with x0, with gamma the mean learning rate of its steps:
    u <- beta u + (x0 - mean(x)) / gamma, then x <- x0 - alpha gamma u.

    Attributes:
        beta: the momentum, at least 0 and below 1. 0 with alpha 1 is `LocalSGD` alone; on one rank
            it is Lookahead.
        alpha: the slow learning rate, positive.
    """

    beta: float = 0.7
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.beta < 1 and self.alpha > 0):
            raise ValueError(
                "`beta` must be in [0, 1), and `alpha` positive. Received: "
                f"beta={self.beta}, alpha={self.alpha}"
            )


def LocalSGD(  # the paper's name
    optimizer: str | keras.optimizers.Optimizer,
    period: Steps = 16,
    *,
    warmup_steps: int = 0,
    average: Literal["parameters", "parameters+slots"] = "parameters",
    outer: keras.optimizers.Optimizer | SlowMo | None = None,
    compression: type[Compressor] | PowerSGD = Compression.none,
    algorithm: str | None = None,
    process_set: ProcessSet | None = None,
) -> keras.optimizers.Optimizer:
    """Make `optimizer` take steps of its own on each rank, and average parameters in between.

    Parameter averaging, or local SGD (Stich 2019). Ranks send the size of the model once in
    `period` steps, in place of once in each. An epoch ends a period: `fit` evaluates and saves
    parameters that all ranks have in common, and so does a loop of your own behind
    `ringar.join(optimizer)`. Each rank counts in the average with the rows that it has trained on
    in the period.

    Within a period ranks differ in all state that is not averaged. Metrics and moving statistics of
    `BatchNormalization` become those of all ranks at the end of an epoch. The optimizer's slots
    stay those of the rank unless `average` says otherwise.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, or the name of one. The object itself becomes
            distributed and keeps its state.
        period: the steps of a period; or a function of the number of steps taken (an int64 scalar)
            that returns them, and is part of the traced step.
        warmup_steps: the number of first steps that have a period of one step: post-local SGD (Lin
            et al. 2020).
        average: "parameters"; or "parameters+slots", to average also the slots of the optimizer
            that have the size of a variable, such as Adam's moments.
        outer: the use of the average. None: ranks go on from it. A `ringar.SlowMo`: slow momentum.
            An optimizer: it takes a step from the parameters x0 at the beginning of the period,
            with the gradient x0 - mean(x).
        compression: the form in which x0 - x is sent, as for `ringar.DistributedOptimizer`.
        algorithm: the algorithm of allreduces between hosts, as for `ringar.allreduce`.
        process_set: the ranks that train together; by default all.

    Returns:
        `optimizer`, whose class is now `Distributed<class>`, as that of
        `ringar.DistributedOptimizer`.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `optimizer` is distributed already, or an argument is out of range.
        UnsupportedError: in the first step, with layers that are cut, or in an elastic job.
    """
    _check(period, warmup_steps)
    if average not in ("parameters", "parameters+slots"):
        raise ValueError(
            f'`average` must be "parameters" or "parameters+slots". Received: {average!r}'
        )
    mean = Reduction(
        Average, compression, algorithm, process_set, None, 1.0, 1.0, False, "parameters"
    )
    with_slots = average == "parameters+slots"
    exchange = local_steps(period, warmup_steps, _rule(outer), mean, with_slots)
    return distribute(optimizer, exchange, "ringar.LocalSGD")


def DiLoCo(  # the paper's name
    optimizer: str | keras.optimizers.Optimizer,
    period: Steps = 100,
    *,
    outer: keras.optimizers.Optimizer | None = None,
    compression: type[Compressor] | PowerSGD = Compression.none,
    algorithm: str | None = None,
    process_set: ProcessSet | None = None,
) -> keras.optimizers.Optimizer:
    """Make `optimizer` the inner optimizer of DiLoCo (Douillard et al. 2023).

    It is `ringar.LocalSGD` with an outer optimizer, by default the paper's: SGD with a learning
    rate of 0.7 and Nesterov momentum 0.9. The paper takes AdamW inside and periods of 500 steps.

    Args:
        optimizer: the inner optimizer.
        period: the steps of a period, as for `ringar.LocalSGD`.
        outer: the outer optimizer.
        compression: as for `ringar.LocalSGD`.
        algorithm: as for `ringar.LocalSGD`.
        process_set: the ranks that train together; by default all.

    Returns:
        `optimizer`, distributed, as from `ringar.LocalSGD`.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `optimizer` is distributed already, or an argument is out of range.
    """
    return LocalSGD(
        optimizer,
        period,
        outer=outer or keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True),
        compression=compression,
        algorithm=algorithm,
        process_set=process_set,
    )


def EASGD(  # the paper's name
    optimizer: str | keras.optimizers.Optimizer,
    period: Steps = 16,
    *,
    beta: float = 0.9,
    server: ParameterServer | None = None,
    compression: type[Compressor] | PowerSGD = Compression.none,
    algorithm: str | None = None,
    process_set: ProcessSet | None = None,
) -> keras.optimizers.Optimizer:
    """Make `optimizer` train by elastic averaging: EASGD (Zhang et al. 2015).

    Ranks keep different parameters x, drawn to a common center. At the end of a period, with
    d = x - center: x <- x - alpha d, and center <- center + beta mean(d), where alpha = beta / p
    on p ranks. An epoch ends a period; then all ranks take the center, which `fit` evaluates and
    saves. In a loop of your own, `ringar.join(optimizer)` does so.

    With a `server` no worker waits for another one, and the server's parameters are the center:
    after a period a worker takes d = alpha (x - center), and x <- x - d, center <- center + d. The
    end of an epoch, and `close` of the server, end a period there, too.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, or the name of one.
        period: the steps of a period (the paper's tau), as for `ringar.LocalSGD`; with a server a
            number.
        beta: the moving rate of the center, positive and at most 1.
        server: a `ringar.ParameterServer` with `keras.optimizers.SGD(1.0)`, whose control makes
            each push an update, on a rank that works. The other arguments are for ranks in step.
        compression: the form in which d is sent, as for `ringar.DistributedOptimizer`.
        algorithm: as for `ringar.LocalSGD`.
        process_set: the ranks that train together; by default all.

    Returns:
        `optimizer`, distributed, as from `ringar.LocalSGD`.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `optimizer` is distributed already, or an argument is out of range.
    """
    _check(period, 0)
    if not 0 < beta <= 1:
        raise ValueError(f"`beta` must be positive and at most 1. Received: beta={beta}")
    if server is not None:
        if callable(period):
            raise ValueError("`period` must be a number with a server. Received: a function")
        _check_center(server)
        alpha = beta / server.workers.size()
        replication = ElasticReplication(server, period, alpha)
        server.before_close(replication.finish)
        description: dict[str, object] = {"function": "ringar.EASGD", "beta": beta}
        exchange = replicating(replication, Reducer(server.workers), description)
        return distribute(optimizer, exchange, "ringar.EASGD")
    mean = Reduction(Average, compression, algorithm, process_set, None, 1.0, 1.0, False, "moves")
    rule = ElasticAveraging(beta, or_all(process_set).size())
    return distribute(optimizer, local_steps(period, 0, rule, mean), "ringar.EASGD")


def _check_center(server: ParameterServer) -> None:
    """Expect a server that subtracts each push by itself, and does nothing else."""
    config = settings(server.optimizer)
    is_plain = isinstance(server.optimizer, keras.optimizers.SGD) and (
        config == settings(keras.optimizers.SGD(1.0))
    )
    takes_means = isinstance(server.control, SoftSync | BackupWorkers | HardSync)
    if not is_plain or takes_means or server.control.factor(2) != 1.0:
        raise ValueError(
            "`server` must have the optimizer keras.optimizers.SGD(1.0), without other arguments, "
            "and a control that makes each push an update at a constant rate, as Asynchronous() or "
            "StaleSynchronous: its parameters are the center, which moves by as much as the "
            f"worker. Received: {server.optimizer.__class__.__name__}({config['learning_rate']}) "
            f"and {server.control}"
        )


def _check(period: Steps, warmup_steps: int) -> None:
    if not callable(period) and (not isinstance(period, int) or period < 1):
        raise ValueError(
            "`period` must be a positive number of steps, or a function that returns one. "
            f"Received: period={period!r}"
        )
    if warmup_steps < 0:
        raise ValueError(f"`warmup_steps` must not be negative. Received: {warmup_steps}")


def _rule(outer: keras.optimizers.Optimizer | SlowMo | None) -> Rule:
    if outer is None:
        return Averaging()
    if isinstance(outer, SlowMo):
        return SlowMomentum(outer.beta, outer.alpha)
    if not isinstance(outer, keras.optimizers.Optimizer) or is_distributed(outer):
        raise ValueError(
            "`outer` must be a ringar.SlowMo, or an optimizer of Keras that is not distributed. "
            f"Received: {outer!r}"
        )
    return OuterOptimizer(outer)
