"""Arguments that no rank can use, or that rank 1 alone cannot use; process sets misused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

import ringar
from tests.faults.job import RANK, SIZE, attempt, works
from tests.faults.scripts.modes import Make, Scenario, attempt_in, attempt_in_all_modes, ones

ODD = RANK == 1
ROOM = ["numpy", "eager", "function"]  # where alltoall takes splits


def splits(received: list[int]) -> Scenario:
    """An alltoall whose splits are wrong on rank 1 alone."""

    def run(make: Make) -> None:
        ringar.alltoall(make(ones(6)), received if ODD else [2, 2, 2], name="t")

    return run


def root(received: int, *, everywhere: bool) -> Scenario:
    def run(make: Make) -> None:
        ringar.broadcast(make(ones(4)), received if everywhere or ODD else 0, name="t")

    return run


def scalar(collective: Callable[..., object]) -> Scenario:
    def run(make: Make) -> None:
        collective(make(np.array(1.0, np.float32)), name="t")

    return run


def reduction_of(dtype: type, **options: Any) -> Scenario:
    def run(make: Make) -> None:
        ringar.allreduce(make(ones(4, dtype=dtype)), ringar.Sum, name="t", **options)

    return run


def strings(make: Make) -> None:
    ringar.allgather(make(np.array(["a", "b"])), name="t")


def integer_average(make: Make) -> None:
    ringar.allreduce(make(ones(4, dtype=np.int32)), name="t")


def integer_average_of_shares(make: Make) -> None:
    ringar.reducescatter(make(ones(6, dtype=np.int64)), name="t")


def integer_average_on_one_rank(make: Make) -> None:
    ringar.allreduce(make(ones(4, dtype=np.int32 if ODD else np.float32)), name="t")


def no_such_op(make: Make) -> None:
    ringar.allreduce(make(ones(4)), "sum", name="t")  # type: ignore[arg-type]


def scalars_on_one_rank(make: Make) -> None:
    value = np.array(1.0, np.float32) if ODD else ones(4)
    ringar.allgather(make(value), name="t")


def attempt_arguments() -> None:
    attempt_in_all_modes(
        {
            "root too large": root(SIZE, everywhere=True),
            "root below 0": root(-1, everywhere=True),
            "root too large on rank 1": root(99, everywhere=False),
            "strings": strings,
            "sum of bool": reduction_of(np.bool_),
            "sum of complex": reduction_of(np.complex64),
            "scaled integers": reduction_of(np.int32, prescale_factor=0.5),
            "integer average": integer_average,
            "integer average of shares": integer_average_of_shares,
            "integer average on rank 1": integer_average_on_one_rank,
            "op is a string": no_such_op,
            "scalar to allgather": scalar(ringar.allgather),
            "scalar to alltoall": scalar(ringar.alltoall),
            "scalar to reducescatter": scalar(ringar.reducescatter),
            "scalar on rank 1": scalars_on_one_rank,
        }
    )
    attempt_in_all_modes(
        {
            "splits that do not add up": splits([2, 2, 3]),
            "splits below 0": splits([4, -1, 3]),
            "too few splits": splits([3, 3]),
            "too many splits": splits([2, 2, 2, 0]),
        },
        modes=ROOM,
    )
    attempt_in("compiled", "splits", splits([2, 2, 2]))


def attempt_objects() -> None:
    attempt("object from nowhere", lambda: ringar.broadcast_object("x", root_rank=SIZE))
    attempt("after object from nowhere", works)
    variable = tf.Variable(ones(3 if ODD else 4))
    attempt("variables that differ", lambda: ringar.broadcast_variables([variable]))
    attempt("after variables that differ", works)


def attempt_process_sets() -> None:
    wrong_ranks: dict[str, list[int]] = {
        "rank beyond the job": [0, SIZE],
        "rank below 0": [-1, 0],
        "rank twice": [1, 1],
        "no ranks": [],
    }
    for name, ranks in wrong_ranks.items():
        attempt(name, partial(ringar.add_process_set, ranks))
    attempt("different sets", lambda: ringar.add_process_set([0, 1] if ODD else [0, 2]))
    attempt("after different sets", works)

    never = ringar.ProcessSet([0, 1])
    attempt("never added", lambda: ringar.allreduce(ones(4), process_set=never))
    attempt("removed without being added", lambda: ringar.remove_process_set(never))
    attempt("all ranks removed", lambda: ringar.remove_process_set(ringar.global_process_set))

    pair = ringar.add_process_set([0, 2])
    attempt("added twice", lambda: ringar.add_process_set(pair))
    attempt_in_all_modes({"collective of a set": lambda make: of_the_pair(make, pair)})
    attempt(
        "root outside the set",
        lambda: ringar.broadcast(ones(4), 1, process_set=pair),
    )
    other = ringar.add_process_set([1, 2])
    attempt("different sets removed", lambda: ringar.remove_process_set(pair if ODD else other))
    attempt("after different sets removed", works)
    attempt_after_removal(pair)


def of_the_pair(make: Make, pair: ringar.ProcessSet) -> None:
    ringar.allreduce(make(ones(4)), ringar.Sum, name="pair", process_set=pair)


def attempt_after_removal(pair: ringar.ProcessSet) -> None:
    def traced() -> None:
        of_the_pair(tf.constant, pair)

    function = tf.function(traced, autograph=False)
    function.get_concrete_function()
    compiled = tf.function(traced, autograph=False, jit_compile=True)
    if pair.included():
        compiled()
    ringar.remove_process_set(pair)
    attempt("removed, numpy", lambda: ringar.allreduce(ones(4), process_set=pair))
    attempt("removed, function", function)
    if pair.included():
        attempt("removed, compiled", compiled)
    attempt("after removed", works)


ringar.init(deadline=20, stall_warning=10)
attempt_arguments()
attempt_objects()
attempt_process_sets()
