"""Barrier: nobody goes on before everybody has come."""

from __future__ import annotations

import tensorflow as tf

from ringar.collectives import call as calls
from ringar.collectives import compiled
from ringar.job import native
from ringar.job.process_sets import ProcessSet


@calls.as_it_is
def barrier(*, name: str | None = None, process_set: ProcessSet | None = None) -> None:
    """Wait until all ranks have called it. In a graph, later collectives wait for it.

    Args:
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Raises:
        RingarError: as `ringar.allreduce`.
    """
    call, _ = calls.begin("barrier", process_set, name)
    if compiled.is_compiling():
        # XLA hands a custom call with one result its buffer, with several a list: keep to several.
        compiled.run(call.spec(), [], [tf.TensorSpec([], tf.uint8)])
    elif tf.executing_eagerly():
        native.run(call.spec(), [], [])
    else:
        native.op("barrier", wait=True)(spec=call.spec())
