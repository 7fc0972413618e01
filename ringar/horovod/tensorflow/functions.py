"""Horovod's broadcasts of variables, and collectives on Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle
import tensorflow as tf

from ringar import collectives
from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.tensorflow import handles
from ringar.horovod.tensorflow.mpi_ops import assigned
from ringar.job import place
from ringar.job.process_sets import ProcessSet


def broadcast_variables(
    variables: Iterable[tf.Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Give variables the root rank's values.

    Args:
        variables: variables of TensorFlow or Keras, in the same order on all ranks.
        root_rank: a rank of the job.
        process_set: the ranks that take part.
        inplace: no effect: ringar broadcasts all variables of a dtype at once.

    Returns:
        In a graph the operation that does so, which a session of TensorFlow 1 runs; else None.
    """
    del inplace
    handles.wait_for_all()
    if not tf.executing_eagerly():
        return tf.group(*assigned(list(variables), root_rank, "broadcast_variables", process_set))
    collectives.broadcast_variables(variables, root_rank, process_set=process_set)
    return None


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Return the operation that broadcasts all variables of a graph of TensorFlow 1.

    Raises:
        RuntimeError: in eager code, where variables belong to no graph.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables expected a graph of TensorFlow 1, received eager code; "
            "call broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send the root rank's object, which cloudpickle can pickle, to all ranks.

    Args:
        obj: the object; that of other ranks does not matter.
        root_rank: a rank of the job.
        session: no effect: objects need no session.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part.

    Returns:
        The object of the root: itself there, a copy on other ranks.
    """
    del session
    handles.wait_for_all()
    is_root = place.rank() == root_rank
    data = cloudpickle.dumps(obj) if is_root else b""
    data = collectives.broadcast_object(data, root_rank, name=name, process_set=process_set)
    return obj if is_root else cloudpickle.loads(data)


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return the function that does what `broadcast_object` does with these arguments."""

    def broadcast_one(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast_one


def allgather_object(
    obj: Any,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Collect an object, which cloudpickle can pickle, from every rank, in the order of ranks."""
    del session
    handles.wait_for_all()
    data = cloudpickle.dumps(obj)
    gathered = collectives.allgather_object(data, name=name, process_set=process_set)
    return [cloudpickle.loads(text) for text in gathered]
