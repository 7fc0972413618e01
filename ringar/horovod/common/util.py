"""Horovod's small helpers."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from ringar.horovod.common import built
from ringar.horovod.common.process_sets import is_iterable as is_iterable
from ringar.horovod.common.reduce_op import ReduceOp

Item = TypeVar("Item")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether `ringar.horovod` has a module for a framework, and the framework is there.

    Args:
        ext_base_name: "tensorflow", "torch" or "mxnet".
        verbose: print the answer.
    """
    is_there = ext_base_name == "tensorflow" and importlib.util.find_spec("tensorflow") is not None
    if verbose:
        print(f"Extension {ext_base_name} is {'' if is_there else 'not '}available.")
    return is_there


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework sees a GPU.

    Args:
        ext_base_name: "tensorflow"; others see none here.
        verbose: print the answer.
    """
    has_gpu = False
    if extension_available(ext_base_name):
        import tensorflow as tf

        has_gpu = bool(tf.config.list_physical_devices("GPU"))
    if verbose:
        print(f"Extension {ext_base_name} has {'a' if has_gpu else 'no'} GPU.")
    return has_gpu


def mpi_built(verbose: bool = False) -> bool:
    """Return whether MPI can be used here; see `ringar.horovod.common.built`."""
    return _report("MPI", built.mpi_built(), verbose)


def gloo_built(verbose: bool = False) -> bool:
    """Return False: ringar has no Gloo."""
    return _report("Gloo", built.gloo_built(), verbose)


def nccl_built(verbose: bool = False) -> int:
    """Return the version of the NCCL that can be used here, as a number; 0 if there is none."""
    return _report("NCCL", built.nccl_built(), verbose)


def ddl_built(verbose: bool = False) -> bool:
    """Return False: ringar has no DDL."""
    return _report("DDL", built.ddl_built(), verbose)


def ccl_built(verbose: bool = False) -> bool:
    """Return False: ringar has no oneCCL."""
    return _report("oneCCL", built.ccl_built(), verbose)


def _report(library: str, answer: Item, verbose: bool) -> Item:
    if verbose:
        print(f"{library} can be used here: {answer}")
    return answer


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set variables of the environment, and restore them at the end.

    Args:
        **kwargs: their values; None leaves a variable as it is.
    """
    variables = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(
    reduce_ops: type[ReduceOp],
) -> Callable[[ReduceOp | None, bool | None], ReduceOp]:
    """Return the function that combines the arguments `op` and `average`, Horovod's older one."""

    def combined(op: ReduceOp | None, average: bool | None) -> ReduceOp:
        if op is not None:
            if average is not None:
                raise ValueError(
                    f"expected `op` or `average`, received both: op={op}, average={average}"
                )
            return reduce_ops(op)
        if average is None:
            return reduce_ops.Average
        warnings.warn("`average` is deprecated: pass `op`", DeprecationWarning, stacklevel=3)
        return reduce_ops.Average if average else reduce_ops.Sum

    return combined


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version, such as `tf.__version__`, is another one or later."""
    from packaging import version  # Keras brings it

    return bool(version.parse(ver) >= version.parse(target))


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of 2."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Item], n: int) -> list[Sequence[Item]]:  # noqa: E741  # Horovod's name
    """Split a list into `n` parts whose lengths differ by 1 at most; longer ones come first."""
    short, rest = divmod(len(l), n)
    ends = [part * short + min(part, rest) for part in range(n + 1)]
    return [l[ends[part] : ends[part + 1]] for part in range(n)]
