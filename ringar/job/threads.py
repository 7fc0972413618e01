"""Sizes of TensorFlow's thread pools in each rank.

TensorFlow has two pools. The intra-op pool splits one operation, such as a matrix product, into
parts. The inter-op pool runs independent operations and the input pipeline. By default each pool
takes every core in every rank, so that N ranks on one host have N times as many threads as cores.
`ringar.init()` gives each rank its share instead; 0 means TensorFlow's own default, all cores. Two
operations can run at once even where a rank has one core: one may wait for the other. Where ranks
have less than a core each, idle threads of the pools do not poll for work.

Pools start with the first operation and keep their sizes. After that, an explicit number in
`init()` or in the environment is an error, and ringar's own defaults have no effect.
"""

from __future__ import annotations

import math
import os
from types import ModuleType

from ringar.job import native, tensorflow

__all__ = ["configure", "cores", "inter_op_threads", "intra_op_threads"]

INTRA_OP_VARIABLE = "RINGAR_INTRA_OP_THREADS"
INTER_OP_VARIABLE = "RINGAR_INTER_OP_THREADS"

#: Set by the launcher where it has bound this rank to CPUs: their number, divided by the ranks that
#: are bound to the same ones.
BOUND_CPUS_VARIABLE = "RINGAR_BOUND_CPUS"

# With one thread, an operation that waits would stall the input pipeline, and a collective that
# `numpy_function` calls would keep TensorFlow from computing the inputs of the one before it.
_MIN_INTER_OP = 2


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores(local_size: int = 1) -> int:
    """Return the number of cores that this rank should use.

    Args:
        local_size: the number of ranks on this host.

    Returns:
        The launcher's number if it has bound this process to CPUs, else its share of all CPUs that
        it may use; at least 1.
    """
    usable = usable_cpus()
    # A bound process sees only its own CPUs. Dividing them once more would leave cores idle.
    if bound := _bound_cpus():
        return max(1, min(usable, int(bound)))
    return max(1, math.ceil(min(usable, quota())) // max(1, local_size))


def quota() -> float:
    """Return the CPUs' worth of time of this process' control groups; infinity without a limit."""
    return float(native.library().ringar_processor_quota())


def are_cores_shared(local_size: int) -> bool:
    """Return whether `local_size` ranks have less than a core each, by affinity and quota."""
    if local_size > quota():
        return True
    if bound := _bound_cpus():
        return bound < 1
    return local_size > usable_cpus()


def _bound_cpus() -> float:
    """Return the rank's share of the CPUs that it is bound to; 0 if the launcher has bound none."""
    return float(os.environ.get(BOUND_CPUS_VARIABLE) or 0)


def configure(
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    local_size: int = 1,
) -> None:
    """Size TensorFlow's thread pools for one of `local_size` ranks of this host.

    `ringar.init()` calls this; it waits for the program to import TensorFlow. Arguments default to
    RINGAR_INTRA_OP_THREADS and RINGAR_INTER_OP_THREADS, and with several ranks to the rank's share
    of the cores.

    Args:
        intra_op_threads: threads that work on one operation; 0 for TensorFlow's default.
        inter_op_threads: operations that run at once; 0 for TensorFlow's default.
        local_size: the number of ranks on this host.

    Raises:
        ValueError: a number is negative or not a number.
        RuntimeError: TensorFlow's pools already run with another number than an explicit one.
    """
    intra = _request("intra_op_threads", intra_op_threads, INTRA_OP_VARIABLE)
    inter = _request("inter_op_threads", inter_op_threads, INTER_OP_VARIABLE)
    share, is_shared = cores(local_size), are_cores_shared(local_size)
    if intra is None and inter is None and local_size == 1 and share >= _MIN_INTER_OP:
        return  # TensorFlow's own defaults are right for the only rank of a host

    def set_pools() -> None:
        _set("intra_op", share, intra)
        _set("inter_op", max(_MIN_INTER_OP, share), inter)
        if is_shared:
            _stop_polling()

    tensorflow.when_loaded("threads", set_pools)


def intra_op_threads() -> int:
    """Return the size of the intra-op pool; 0 if it was left to TensorFlow."""
    return int(_threading().get_intra_op_parallelism_threads())


def inter_op_threads() -> int:
    """Return the size of the inter-op pool; 0 if it was left to TensorFlow."""
    return int(_threading().get_inter_op_parallelism_threads())


def _request(name: str, value: int | None, variable: str) -> int | None:
    if value is None:
        text = os.environ.get(variable, "")
        if not text:
            return None
        if not text.isdecimal():
            raise ValueError(
                f"{variable} must be a number of threads, 0 or more. Received: {variable}={text}"
            )
        return int(text)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(
            f"`{name}` must be None or an integer, 0 or more. Received: {name}={value!r}"
        )
    return value


def _set(pool: str, default: int, request: int | None) -> None:
    threading = _threading()
    count = default if request is None else request
    try:
        getattr(threading, f"set_{pool}_parallelism_threads")(count)
    except RuntimeError as error:
        running = getattr(threading, f"get_{pool}_parallelism_threads")()
        # No error for ringar's own default, nor for a number that the pool has already.
        if request is None or running == request:
            return
        raise RuntimeError(
            f"{pool}_threads={request} comes too late: TensorFlow's thread pools are already "
            f"running with {running} (0 is its default). Call "
            f"ringar.init({pool}_threads={request}) before the first TensorFlow operation."
        ) from error


def _stop_polling() -> None:
    """Let idle threads of the pools sleep at once, instead of polling where other ranks compute.

    TensorFlow has this setting only in the configuration that a context gets when it is made.
    """
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    current = context.context()
    if current._config is None:
        current._config = config_pb2.ConfigProto()
    current._config.experimental.disable_thread_spinning = True


def _threading() -> ModuleType:
    threading: ModuleType = tensorflow.load().config.threading
    return threading
