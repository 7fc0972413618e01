"""Barrier: no rank goes on before all ranks have arrived."""

from __future__ import annotations

from ringar.collectives import call as calls
from ringar.collectives import repeats
from ringar.collectives.call import Call
from ringar.job import native, tensorflow
from ringar.job.process_sets import ProcessSet


def barrier(*, name: str | None = None, process_set: ProcessSet | None = None) -> None:
    """Wait until all ranks have called `barrier`.

    In a graph, later collectives wait for it.

    Args:
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part; default all.

    Raises:
        RingarError: as `ringar.allreduce`.
        UnsupportedError: in a graph of TensorFlow 1, whose sessions run what they fetch.

    Examples:
        All ranks read a file that rank 0 has written:

        >>> if ringar.rank() == 0:
        ...     np.save("rows.npy", np.arange(3))
        >>> ringar.barrier()
        >>> np.load("rows.npy")
        array([0, 1, 2])
    """
    arguments = ("barrier", name, process_set)
    if repeat := repeats.find(None, arguments):
        repeat()
        return
    call, _ = calls.begin("barrier", process_set, name)
    if tensorflow.is_eager():
        native.run(call.spec(), [], [])
        repeats.remember(None, arguments, call)
    else:
        _add_to_graph(call)


def _add_to_graph(call: Call) -> None:
    from ringar.collectives import compiled, one_rank, order

    order.check_session_graph(call, has_result=False)
    if native.absence() is not None:
        one_rank.barrier(call)
    elif compiled.is_compiling():
        compiled.run(call.spec(), [], [])
    else:
        order.in_order(lambda: native.op("barrier", wait=True)(spec=call.spec()))
