"""Broadcast: every rank gets the root rank's tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ringar.collectives import call as calls
from ringar.collectives import repeats
from ringar.collectives.call import Call
from ringar.collectives.collective import Collective
from ringar.collectives.dtypes import ArrayT
from ringar.collectives.ways import define, run, values_of
from ringar.job import log, process_sets
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from ringar.collectives.tensors import Backward

_OF_VARIABLES = "broadcast_variables"
_log = log.logger(__name__)


def broadcast(
    tensor: ArrayT,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> ArrayT:
    """Send the root rank's tensor to all ranks.

    Args:
        tensor: a TensorFlow tensor or variable or a NumPy array, of one shape and dtype on all
            ranks; any dtype but strings.
        root_rank: a rank of the job, also with a process set.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Returns:
        The root's values.

    The gradient is that of the sum of all ranks' losses: the root gets the sum of all ranks'
    upstream gradients, the other ranks zeros. Horovod divides it by the number of ranks.

    Raises:
        RingarError: as `ringar.allreduce`.
        MismatchError: also for a root out of range.
        ValueError: the root is not in the process set.

    Examples:
        What rank 0 of two sees:

        >>> ringar.broadcast(np.array([ringar.rank(), 7]), root_rank=1)
        array([1, 7])
    """
    arguments = ("broadcast", root_rank, name, process_set)
    if repeat := repeats.find(tensor, arguments):
        return repeat(tensor)
    return _broadcast([tensor], root_rank, name, process_set, arguments)[0]


def grouped_broadcast(
    tensors: Sequence[ArrayT],
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[ArrayT]:
    """Broadcast many tensors at once; see `ringar.broadcast`.

    Examples:
        What rank 0 of two sees:

        >>> ringar.grouped_broadcast([np.array([ringar.rank()]), np.zeros(2)], root_rank=1)
        [array([1]), array([0., 0.])]
    """
    return _broadcast(tensors, root_rank, name, process_set)


def _broadcast(
    tensors: Sequence[ArrayT],
    root_rank: int,
    name: str | None,
    process_set: ProcessSet | None,
    arguments: tuple[Any, ...] = (),
) -> list[ArrayT]:
    values = values_of(tensors, "broadcast")
    if not values:
        return []
    call, ranks = calls.begin("broadcast", process_set, name)
    call = dataclasses.replace(call, root=root_in_set(call, root_rank, ranks))
    return run(call, values, arguments)


def root_in_set(call: Call, root_rank: int, ranks: ProcessSet) -> int:
    """Return the number that a rank of the job has in a process set.

    Raises:
        ValueError: the rank is not a member.
    """
    if ranks is process_sets.global_process_set:
        return int(root_rank)  # the engine checks it, and raises on all ranks
    if root_rank not in ranks.ranks:
        raise ValueError(
            call.refusal(
                f"a root_rank out of the process set's ranks {ranks.ranks}",
                root_rank,
                "root_rank is a rank of the job, not a place in the set.",
            )
        )
    return ranks.ranks.index(root_rank)


def _gradient(back: Backward) -> list[tf.Tensor]:
    """Return the sum of all gradients on the root, zeros elsewhere: only its tensor is used."""
    import tensorflow as tf

    total = back.run("allreduce", back.upstream)
    if process_sets.rank_in(back.call.process_set) == back.call.root:
        return total
    return [tf.zeros_like(t) for t in total]


define("broadcast", Collective(_gradient))


def broadcast_variables(
    variables: Iterable[tf.Variable | keras.Variable],
    root_rank: int = 0,
    *,
    process_set: ProcessSet | None = None,
) -> None:
    """Give all ranks the root rank's values of some variables, in place.

    Args:
        variables: `tf.Variable` or `keras.Variable` objects, in the same order on all ranks.
        root_rank: a rank of the job.
        process_set: the ranks that take part; default all.

    Raises:
        RingarError: as `ringar.broadcast`.
        UnsupportedError: in a graph of TensorFlow 1.

    Examples:
        What rank 0 of two sees:

        >>> kernel = tf.Variable([float(ringar.rank())])
        >>> ringar.broadcast_variables([kernel], root_rank=1)
        >>> kernel.numpy()
        array([1.], dtype=float32)
    """
    import tensorflow as tf

    from ringar.collectives import order

    order.check_session_graph(Call("broadcast", name=_OF_VARIABLES), has_result=False)
    targets = list(variables)
    values = grouped_broadcast(
        [tf.convert_to_tensor(v) for v in targets],
        root_rank,
        name=_OF_VARIABLES,
        process_set=process_set,
    )
    for target, value in zip(targets, values, strict=True):
        target.assign(value)
    _log.debug("received %d variables of rank %d", len(targets), root_rank)
