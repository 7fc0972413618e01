"""This rank's place in the job: its source, and the functions that return it.

`ringarrun` sets environment variables (`read_config`); in a job of MPI, MPI tells the place
(`apply_mpi_place`). A program without a launcher is a job of one rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ringar.errors import NotInitializedError
from ringar.job import inherited, membership, mpi, native, nvidia
from ringar.job.cost_model import ALGORITHMS

DEFAULT_DEADLINE = 600.0
DEFAULT_STALL_WARNING = 30.0
DEFAULT_START_TIMEOUT = 120.0

_config: native.Config | None = None  # while ringar is initialized

repeats: dict[tuple[Any, ...], Callable[..., Any]] = {}
"""Calls of the running job and its process sets that a program repeats, for
`ringar.collectives.repeats`."""


def read_config(
    environment: Mapping[str, str],
    deadline: float | None,
    stall_warning: float | None,
    start_timeout: float | None,
) -> native.Config:
    """Read the configuration of this rank from the environment and the arguments of `init`.

    Args:
        environment: `os.environ`.
        deadline: the argument of `ringar.init`; None takes the environment's, or the default.
        stall_warning: likewise.
        start_timeout: likewise.

    Raises:
        ValueError: a variable or a time is no valid number.
    """

    def integer(name: str, default: int) -> int:
        text = environment.get(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name} must be a whole number. Received: {text!r}") from None

    def seconds(argument: str, name: str, setting: float | None, default: float) -> float:
        text = environment.get(name, default) if setting is None else setting
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{name} must be a number of seconds. Received: {text!r}") from None
        if not value > 0:
            raise ValueError(f"{argument} must be more than 0 seconds. Received: {value}")
        return value

    config = native.Config(
        rank=integer("RINGAR_RANK", 0),
        size=integer("RINGAR_SIZE", 1),
        local_rank=integer("RINGAR_LOCAL_RANK", 0),
        local_size=integer("RINGAR_LOCAL_SIZE", 1),
        cross_rank=integer("RINGAR_CROSS_RANK", 0),
        cross_size=integer("RINGAR_CROSS_SIZE", 1),
        segment_fd=integer("RINGAR_SEGMENT_FD", -1),
        deadline=seconds("deadline", "RINGAR_DEADLINE", deadline, DEFAULT_DEADLINE),
        stall_warning=seconds(
            "stall_warning", "RINGAR_STALL_WARNING", stall_warning, DEFAULT_STALL_WARNING
        ),
        start_timeout=seconds(
            "start_timeout", "RINGAR_START_TIMEOUT", start_timeout, DEFAULT_START_TIMEOUT
        ),
    )
    if algorithm := environment.get(mpi.ALGORITHM_VARIABLE):
        if algorithm not in ALGORITHMS:
            raise ValueError(
                f"{mpi.ALGORITHM_VARIABLE} must be one of {', '.join(ALGORITHMS)}. "
                f"Received: {algorithm!r}"
            )
        config.algorithm = algorithm.encode()
    if library := nvidia.cuda_library(environment):
        config.cuda_library = os.fsencode(library)
    if library := nvidia.nccl_library(environment):
        config.nccl_library = os.fsencode(library)
    if not 0 <= config.rank < config.size:
        raise ValueError(
            f"RINGAR_RANK must be from 0 to RINGAR_SIZE - 1. Received: RINGAR_RANK={config.rank}, "
            f"RINGAR_SIZE={config.size}"
        )
    return config


def apply_mpi_place(joined: mpi.Place, config: native.Config) -> None:
    """Write the place that MPI has given this rank into `config`."""
    config.rank, config.size = joined.rank, joined.size
    config.local_rank, config.local_size = joined.local(joined.rank), joined.local_size
    config.cross_rank = joined.cross.index(joined.hosts[joined.rank])
    config.cross_size = len(joined.cross)
    config.segment_fd = joined.segment_fd
    config.generation = joined.generation
    config.set_link(
        joined.hosts,
        joined.link_library,
        joined.link_communicator,
        joined.tables,
    )


def apply_world(world: membership.World, config: native.Config) -> None:
    """Write the place that the launcher of an elastic job has given this rank into `config`."""
    config.rank, config.size = world.rank, world.size
    config.segment_fd = world.segment
    config.generation = world.generation
    config.news_fd = world.news


def set_config(config: native.Config | None) -> None:
    """Set the configuration of the running job; None: no job runs."""
    global _config
    _config = config
    repeats.clear()


def require(caller: str) -> native.Config:
    """Return the configuration of the running job.

    Args:
        caller: the function that needs it, for the error.

    Raises:
        NotInitializedError: before `ringar.init()`, or after `ringar.shutdown()`.
    """
    if _config is None and (process := inherited.rank_process(os.environ)) is not None:
        raise NotInitializedError(
            f"expected a rank to call {caller}; received a process that a rank, process {process}, "
            "has started, and that is none"
        )
    if _config is None:
        raise NotInitializedError(f"ringar is not initialized: call ringar.init() before {caller}")
    return _config


def is_initialized() -> bool:
    """Return whether ringar runs: after `ringar.init` and before `ringar.shutdown`."""
    return _config is not None


def rank() -> int:
    """Return the number of this process in the job, from 0."""
    return int(require("ringar.rank()").rank)


def size() -> int:
    """Return the number of ranks in the job."""
    return int(require("ringar.size()").size)


def local_rank() -> int:
    """Return the number of this process on its host, from 0."""
    return int(require("ringar.local_rank()").local_rank)


def local_size() -> int:
    """Return the number of ranks on this host."""
    return int(require("ringar.local_size()").local_size)


def cross_rank() -> int:
    """Return the number of this host among those that have a rank of this local rank."""
    return int(require("ringar.cross_rank()").cross_rank)


def cross_size() -> int:
    """Return the number of hosts that have a rank of this local rank."""
    return int(require("ringar.cross_size()").cross_size)


def hosts() -> list[int]:
    """Return the number of each rank's host."""
    config = require("ringar.DistributedOptimizer(shard_ranks=...)")
    return [int(config.hosts[rank]) if config.hosts else 0 for rank in range(config.size)]
