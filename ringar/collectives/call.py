"""Everything that describes a collective except its arrays, as one line of text for the engine."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar import errors
from ringar.collectives.dtypes import ITEM_BYTES
from ringar.job import membership, place, tensorflow
from ringar.job.cost_model import ALGORITHMS
from ringar.job.process_sets import ProcessSet, or_all

if TYPE_CHECKING:
    import tensorflow as tf

TICKET = "RingarTicket"
"""The op by which asynchronous collectives keep their order (tf_ops/kernels/ticket.cc)."""

REMEMBERED = 1024
"""How many calls are remembered: a program repeats those of its steps."""

_session_graphs = itertools.count()


@dataclasses.dataclass(frozen=True)
class Call:
    """Describe a collective: everything except its arrays."""

    collective: str
    op: str = "sum"
    root: int = 0  # a rank of the process set
    process_set: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    wire: str = ""  # the dtype in which float32 travels between hosts; "": as float32
    algorithm: str = ""  # of an allreduce, one of ALGORITHMS; "": "auto"
    shares: int = -1  # the key of a weighted average (ringar.collectives.shares); -1: none
    tag: int = 0  # of a message
    mean: bool = False  # divide by the number of ranks that there are when it runs
    world: int = -1  # the generation outside which it must not run; -1: none
    name: str = ""

    def spec(self, dtype: str = "uint8", shapes: Sequence[Sequence[int]] = ()) -> str:
        """Return the line of text that tf_ops/engine/spec.h describes.

        Raises:
            UnsupportedError: no collective takes the dtype (strings, for example).
        """
        text = _settings(self, dtype)
        if shapes:
            text += "shapes=" + ";".join(",".join(map(str, shape)) for shape in shapes) + " "
        return text + f"name={self.name}"

    def refusal(self, expected: str, received: object, remedy: str) -> str:
        """Return the message of an error that Python finds, in the form of the engine's messages.

        Args:
            expected: the right argument.
            received: this rank's argument.
            remedy: the way out, in sentences.
        """
        name = f' "{self.name}"' if self.name else ""
        return (
            f"rank {place.rank()} | {self.collective}{name}: expected {expected}; "
            f"received {received}. {remedy}"
        )

    def has_factors_nccl_lacks(self) -> bool:
        """Return whether a reduction other than a sum has factors."""
        return self.op != "sum" and (self.prescale, self.postscale) != (1.0, 1.0)

    @classmethod
    def parse(cls, spec: str) -> Call:
        """Return the inverse of `spec`."""
        head, name = spec.split(" name=", 1)
        collective, *pairs = head.split(" ")
        values = dict(pair.split("=", 1) for pair in pairs)
        return cls(
            collective,
            op=values["op"],
            root=int(values["root"]),
            process_set=int(values["set"]),
            prescale=float(values["prescale"]),
            postscale=float(values["postscale"]),
            wire=values.get("wire", ""),
            algorithm=values.get("algorithm", ""),
            mean="mean" in values,
            world=int(values.get("world", -1)),
            name=name,
        )

    def gradient(self, **changes: str | float) -> Call:
        """Return a call for the gradient of this one: the same ranks, another name, unscaled.

        The allreduce for the gradient of an allreduce keeps its wire dtype and its algorithm.
        """
        defaults: dict[str, Any] = {"prescale": 1.0, "postscale": 1.0, "op": "sum"}
        defaults |= {"root": 0, "mean": False}
        if changes.get("collective", self.collective) != "allreduce":
            defaults |= {"wire": "", "algorithm": ""}
        return dataclasses.replace(self, name=f"{self.name}/gradient", **{**defaults, **changes})


@functools.lru_cache(REMEMBERED)
def _settings(call: Call, dtype: str) -> str:
    """Return the part of a spec before its shapes and name."""
    if dtype not in ITEM_BYTES:
        raise errors.UnsupportedError(
            call.refusal(
                f"a dtype out of {', '.join(ITEM_BYTES)}",
                dtype,
                "Cast it first; ringar.broadcast_object and ringar.allgather_object take "
                "anything that can be pickled.",
            )
        )
    text = (
        f"{call.collective} dtype={dtype} op={call.op} root={call.root} "
        f"set={call.process_set} prescale={call.prescale!r} postscale={call.postscale!r} "
    )
    if call.wire and dtype == "float32":  # no other dtype is narrowed
        text += f"wire={call.wire} "
    if call.algorithm:
        text += f"algorithm={call.algorithm} "
    if call.shares >= 0:
        text += f"shares={call.shares} "
    if call.tag:
        text += f"tag={call.tag} "
    if call.mean:
        text += "mean=1 "
    if call.world >= 0:
        text += f"world={call.world} "
    return text


def by_dtype(dtypes: Iterable[np.dtype | tf.DType]) -> list[list[int]]:
    """Return the indices of each dtype's tensors, in the order in which the dtypes first appear.

    Tensors of one dtype travel together.
    """
    groups: dict[np.dtype | tf.DType, list[int]] = {}
    for i, dtype in enumerate(dtypes):
        groups.setdefault(dtype, []).append(i)
    return list(groups.values())


def checked_algorithm(algorithm: object) -> str:
    """Return the algorithm for a `Call`: "" leaves the choice to the engine.

    Raises:
        ValueError: there is no such algorithm.
    """
    if algorithm in (None, "auto"):
        return ""
    if algorithm not in ALGORITHMS:
        names = ", ".join(f'"{name}"' for name in ALGORITHMS)
        raise ValueError(
            f"`algorithm` must be None or one of {names}. Received: algorithm={algorithm!r}"
        )
    return str(algorithm)


def begin(
    collective: str,
    process_set: ProcessSet | None,
    name: str | None,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    function: str | None = None,
) -> tuple[Call, ProcessSet]:
    """Return a call on a process set, with a name that is the same on all ranks.

    A call without a name gets a number within its graph. Ranks may trace a function at different
    times, and more or less often, but they trace the same functions. Each process set counts by
    itself, since ranks may be members of different sets.

    Args:
        collective: the name of the collective.
        process_set: the ranks that take part; None: all.
        name: the user's name for the call.
        prescale: factor before a reduction.
        postscale: factor after it.
        function: the user's function, if it is not `ringar.<collective>`.
    """
    place.require(f"{function or 'ringar.' + collective}()")
    ranks = or_all(process_set)
    if ranks.process_set_id is None:
        raise ValueError(
            Call(collective, name=name or "").refusal(
                "a process set that is in use",
                process_set,
                "Call ringar.add_process_set() on all ranks first; a set that was removed has to "
                "be added again.",
            )
        )
    if name is None:
        name = "" if tensorflow.is_eager() else number_in_graph(collective, ranks.process_set_id)
    world = _world_of(collective, ranks)
    # float(): the repr of a NumPy number is not a number in the spec.
    scales = float(prescale), float(postscale)
    return _call(collective, ranks.process_set_id, *scales, world, name), ranks


@functools.lru_cache(REMEMBERED)
def _call(
    collective: str, process_set: int, prescale: float, postscale: float, world: int, name: str
) -> Call:
    return Call(
        collective,
        process_set=process_set,
        prescale=prescale,
        postscale=postscale,
        world=world,
        name=" ".join(name.split()),
    )


_has_bound_graphs = False


def has_bound_graphs() -> bool:
    """Return whether an elastic job has traced a function that depends on the number of ranks."""
    return _has_bound_graphs


def _world_of(collective: str, ranks: ProcessSet) -> int:
    """Return the world to which a collective in a graph is bound; -1 for none.

    Graphs outlive worlds. An allreduce depends on the number of ranks only in its mean, for which
    there is `Call.mean`.
    """
    global _has_bound_graphs
    free = collective in ("allreduce", "broadcast", "barrier") and ranks.process_set_id == 0
    if free or tensorflow.is_eager() or not membership.is_elastic():
        return -1
    _has_bound_graphs = True
    return int(place.require("a collective").generation)


def number_in_graph(name: str, process_set_id: int) -> str:
    """Return a name with a number that no other call of its graph has; the same on all ranks.

    Graphs of TensorFlow 1 have numbers, too: a program keeps several, and functions of one graph
    never run in another. Calls that were there before, in a graph that was imported, count.
    """
    tf = tensorflow.load()
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_ringar_calls"):
        graph._ringar_calls, graph._ringar_prefix = collections.Counter(), ""
        if not tf.inside_function():
            tickets = sum(operation.type == TICKET for operation in graph.get_operations())
            graph._ringar_prefix = f"graph_{next(_session_graphs)}_{tickets}/"
    number: int = graph._ringar_calls[process_set_id]
    graph._ringar_calls[process_set_id] += 1
    return f"{graph._ringar_prefix}{name}_{number}"
