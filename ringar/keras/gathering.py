"""The weights of a layer, gathered while the layer needs them.

Weights are sharded: each rank keeps slices. The unit of gathering is a layer that a model calls,
with all layers inside it, or a group of layers that the user names. In a *pass*, a forward pass
with its backward pass, a unit costs

    forward     one grouped all-gather of its slices; the whole weights live until the call's end
    backward    a second all-gather of its matrices (`regather.py`), in graphs only
                one grouped reduce-scatter of their gradients: the gradient of the first one

Gatherings could all run when a step begins, and would hold all weights. So the gathering of a unit
waits for the input of the unit before it, and that of the backward pass for the gradient that
reaches the unit behind it: one layer is prefetched. The last unit keeps its weights, since its
backward pass follows at once. Vectors are kept, too.

Every reading of a weight outside a unit is a gathering of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.eager import record as tape_record
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_v2_func_graphs as branch_graphs

from ringar.collectives import Average, grouped_allgather, shares
from ringar.collectives.compiled import is_compiling
from ringar.collectives.compression import Compression
from ringar.collectives.shares import Control
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import ProcessSet
from ringar.keras import regather, share
from ringar.sharding.sharded_variable import WeightSlice, slice_of


@dataclass
class Plan:
    """Hold the collectives of a pass in their order, for a rank without data that repeats them.

    Attributes:
        gathers: those of the forward pass.
        entries: each runs one collective, and adds the gradients that it gets to its argument, by
            the keys of slices.
        variables: those whose step ends the pass, once it has come.
        record: the record of the training step, if it is one.
    """

    gathers: list[Callable[[], Any]] = field(default_factory=list)
    entries: list[Callable[[dict[Any, tf.Tensor]], None]] = field(default_factory=list)
    variables: Sequence[Any] | None = None
    record: share.Record | None = None

    def repeat(self) -> dict[Any, tf.Tensor]:
        """Run all collectives without data, and return the reduced gradients of slices."""
        gradients: dict[Any, tf.Tensor] = {}
        for entry in self.entries:
            entry(gradients)
        return gradients


class Trainer(Protocol):
    """Reduce the gradients of slices: the exchange of an optimizer."""

    process_set: ProcessSet | None

    def tell(self, plan: Plan) -> tf.Tensor:
        """Tell the other ranks that a step begins, and return their answer."""

    def weigh(self, plan: Plan) -> tf.Tensor:
        """Tell the other ranks this rank's rows, and return its weight in averages."""

    def repeat_rows(self) -> tf.Tensor:
        """Tell the other ranks the rows of this rank, if it has any; return its weight."""

    def scatter(
        self, slices: Sequence[WeightSlice], flat: list[tf.Tensor], weight: Any, name: str
    ) -> list[tf.Tensor]:
        """Return this rank's slices of reduced gradients."""


def ask(process_set: ProcessSet | None, idle: bool, name: str) -> tf.Tensor:
    """Tell the other ranks whether this one takes part in a pass without data; return their answer.

    Args:
        process_set: the ranks.
        idle: whether this rank has no data.
        name: the name of the message.
    """
    return shares.allreduce(
        [], Control(idle=idle), Average, compression=Compression.none, algorithm=None,
        prescale_factor=1.0, postscale_factor=1.0, name=name, process_set=process_set,
    )[1]  # fmt: skip


FORWARD = "weights/forward"
"""The name of the message before a pass without a step."""


class Pass:
    """Gather the units of one forward pass, and reduce their gradients.

    Args:
        trainer: what reduces gradients; None: nothing does.
        process_set: the ranks.
        batch: tensors of the batch, of this graph.
        trains: whether a step follows.
    """

    def __init__(
        self,
        trainer: Trainer | None,
        process_set: ProcessSet | None,
        batch: Sequence[Any],
        trains: bool,
    ) -> None:
        self.trainer, self.process_set = trainer, process_set
        self.graph = None if tf.executing_eagerly() else tf_ops.get_default_graph()
        self.step = share.current()
        self.plan = Plan()
        self.units: list[Unit] = []
        self.groups: dict[Any, Unit] = {}
        self._count = 0
        self._weight: tf.Tensor | None = None
        # A graph whose iterator has ended runs what does not depend on the batch.
        with tf.control_dependencies(own_tensors(batch)):
            if trainer is not None and trains:
                self.answer = trainer.tell(self.plan)
            else:
                self.answer = ask(process_set, False, FORWARD)

    def number(self) -> int:
        """Return the number of the next gathering."""
        self._count += 1
        return self._count

    def weight(self) -> tf.Tensor:
        """Return the weight of this rank in averages of gradients."""
        if self.trainer is None:
            raise ValueError(
                f"rank {place.rank()} | gradients of sharded weights: expected an optimizer that "
                'was built with shard="weights" and these weights, received none; call '
                "optimizer.build(model.trainable_variables) on every rank first"
            )
        if self._weight is None or (self.graph is not None and not own_tensors([self._weight])):
            with tf.control_dependencies(own_tensors([self.answer])):
                self._weight = self.trainer.weigh(self.plan)
            self.plan.entries.append(_without_gradients(self.trainer.repeat_rows))
        return self._weight


class Unit:
    """Gather some weights in a pass.

    Args:
        of: the pass.
        variables: the sharded variables.
        dtypes: for each, the dtype in which it is needed.
        inputs: tensors that the unit needs, for the gathering of the unit behind it.
        is_called: whether a layer, or several, are called with it.
        reaches_back: whether the backward pass goes on to the unit before it.

    Attributes:
        visible: the whole weights, by the identities of the variables.
        calls_left: the calls of a group that are still to come.
    """

    calls_left = 0

    def __init__(
        self,
        of: Pass,
        variables: Sequence[Any],
        dtypes: Sequence[Any],
        inputs: Sequence[Any] = (),
        is_called: bool = False,
        reaches_back: bool = False,
    ) -> None:
        self._pass = of
        self._slices = [slice_of(variable) for variable in variables]
        self._dtypes = list(dtypes)
        self._number = of.number()
        self._before = of.units[-1] if of.units else None
        self.inputs = own_tensors(inputs)
        self._seen: set[int] = set()
        self._again: dict[int, tf.Tensor] = {}
        self._since: int | None = None
        self._reads = [its.read() for its in self._slices]
        records = tape_record.could_possibly_record()
        self._is_large = [len(its.whole.shape) > 1 for its in self._slices]
        self._drops = of.graph is not None and records and reaches_back and any(self._is_large)
        if is_called:
            of.units.append(self)
        after = [*self._before.inputs, of.answer] if self._before is not None else [of.answer]
        wholes = self._link(after) if records else self._gather(self._reads, after)
        self._wholes = wholes
        self.visible = dict(zip(map(id, variables), wholes, strict=True))

    def left(self, output: Any) -> Any:
        """Return an output of a layer of this unit, which tells when the backward pass comes."""
        is_tensor = isinstance(output, tf.Tensor) and output.dtype.is_floating
        if not self._drops or not is_tensor:
            return output

        @tf.custom_gradient
        def leave(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], Any]]:
            def backward(upstream: Any) -> Any:
                self._begin_backward(upstream)
                return upstream

            return tf.identity(x), backward

        outside = leave(output)
        if hasattr(output, "_keras_mask"):
            outside._keras_mask = output._keras_mask
        return outside

    def _link(self, after: Sequence[Any]) -> list[tf.Tensor]:
        """Return the whole weights, whose gradients are reduced, and become those of slices."""

        @tf.custom_gradient
        def gather(*reads: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            return self._gather(list(reads), after), self._reduce

        # A gradient of all weights has zeros for those that the loss does not depend on. The
        # links tell them apart: without an upstream gradient a link is not asked.
        def linked(number: int, whole: tf.Tensor) -> tf.Tensor:
            @tf.custom_gradient
            def link(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], Any]]:
                def backward(upstream: Any) -> tf.Tensor:
                    self._seen.add(number)
                    return tf.ensure_shape(tf.convert_to_tensor(upstream), x.shape)

                return tf.identity(x), backward

            return link(whole)

        return [linked(i, whole) for i, whole in enumerate(gather(*self._reads))]

    def _gather(self, reads: Sequence[Any], after: Sequence[Any]) -> list[tf.Tensor]:
        name = f"weights/gather_{self._number}"
        gather = functools.partial(
            gathered, self._slices, self._dtypes, name, self._pass.process_set
        )
        self._pass.plan.gathers.append(gather)
        self._pass.plan.entries.append(_without_gradients(gather))
        with tf.control_dependencies(own_tensors(after)):
            return gather(reads)

    def _begin_backward(self, upstream: Any) -> None:
        if tf.executing_eagerly() or tf_ops.get_default_graph() is not self._pass.graph:
            return  # the ops of the backward pass are in another graph
        for unit in (self, self._before):
            if unit is not None and unit._drops and unit is not self._pass.units[-1]:
                unit._gather_again(upstream)

    def _gather_again(self, upstream: Any) -> None:
        if self._since is not None:
            return
        self._since = regather.place()
        large = [i for i, is_large in enumerate(self._is_large) if is_large]
        gather = functools.partial(
            gathered,
            [self._slices[i] for i in large],
            [self._dtypes[i] for i in large],
            f"weights/gather_again_{self._number}",
            self._pass.process_set,
        )
        self._pass.plan.entries.append(_without_gradients(gather))
        with tf.control_dependencies([tf.convert_to_tensor(upstream)]):
            wholes = gather([self._reads[i] for i in large])
        self._again = dict(zip(large, wholes, strict=True))

    def _reduce(self, *upstream: Any) -> list[Any]:
        """Return the gradients of the slices, reduced; None for unconnected weights."""
        for number, whole in self._again.items():
            assert self._since is not None
            regather.redirect(self._wholes[number], whole, self._since)
        self._again = {}
        seen = sorted(self._seen)
        trainer, weight = self._pass.trainer, self._pass.weight()
        assert trainer is not None
        slices = [self._slices[i] for i in seen]
        name = f"gradients/scatter_{self._number}"
        self._pass.plan.entries.append(functools.partial(_scatter_zeros, trainer, slices, name))
        flat = [tf.reshape(tf.cast(upstream[i], self._slices[i].storage.dtype), [-1]) for i in seen]
        reduced: list[Any] = [None] * len(self._slices)
        for i, own in zip(seen, trainer.scatter(slices, flat, weight, name), strict=True):
            reduced[i] = own
        return reduced


def gathered(
    slices: Sequence[WeightSlice],
    dtypes: Sequence[Any],
    name: str,
    process_set: ProcessSet | None,
    reads: Sequence[Any] | None = None,
) -> list[tf.Tensor]:
    """Return whole weights; without `reads`, of what the slices are now."""
    # Compiled code knows the shapes before, and needs equal numbers of rows.
    padded, own = is_compiling(), []
    for its, dtype, read in zip(slices, dtypes, reads or [s.read() for s in slices], strict=True):
        part = tf.cast(read, dtype)
        own.append(part if padded or its.count == its.shape[0] else part[: its.count])
    return [
        tf.reshape(its.joined(flat) if padded else flat, its.whole.shape)
        for its, flat in zip(
            slices, grouped_allgather(own, name=name, process_set=process_set), strict=True
        )
    ]


def _without_gradients(collective: Callable[[], Any]) -> Callable[[dict[Any, tf.Tensor]], None]:
    """Return an entry of a plan that adds no gradients."""

    def entry(_: dict[Any, tf.Tensor]) -> None:
        collective()

    return entry


def _scatter_zeros(
    trainer: Trainer, slices: Sequence[WeightSlice], name: str, gradients: dict[Any, tf.Tensor]
) -> None:
    zeros = [tf.zeros([its.elements], its.storage.dtype) for its in slices]
    for its, own in zip(slices, trainer.scatter(slices, zeros, None, name), strict=True):
        key = its._unique_id
        gradients[key] = gradients[key] + own if key in gradients else own


def own_tensors(tensors: Sequence[Any]) -> list[tf.Tensor]:
    """Return those of `tensors` that are of the graph under construction, if there is one."""
    if tf.executing_eagerly():
        return []
    graph = tf_ops.get_default_graph()
    return [t for t in tensors if getattr(t, "graph", None) is graph]


class _Calls:
    """Hold the outermost call of a layer that runs: its tensors, and the pass in eager code."""

    def __init__(self, batch: Sequence[Any]) -> None:
        self.batch = batch
        self.forward: Pass | None = None


_calls: ContextVar[_Calls | None] = ContextVar("calls", default=None)
_eager: dict[Any, Pass] = {}
_last_plans: dict[Any, Plan] = {}


@contextmanager
def outermost(batch: Sequence[Any]) -> Iterator[None]:
    """Return a context for the call of a layer with these tensors."""
    if _calls.get() is not None:
        yield
        return
    token = _calls.set(_Calls(batch))
    try:
        yield
    finally:
        _calls.reset(token)


def current(trainer: Trainer | None, process_set: ProcessSet | None) -> Pass:
    """Return the pass that is traced or runs, of the weights that a trainer trains."""
    calls = _calls.get()
    batch = calls.batch if calls is not None else []
    trains = share.current() is not None or tape_record.could_possibly_record()
    if not tf.executing_eagerly():
        graph = tf_ops.get_default_graph()
        _refuse_nested(graph)
        passes = getattr(graph, "_ringar_passes", None)
        if passes is None:
            passes = graph._ringar_passes = {}
        key = id(trainer), trains
        if key not in passes:
            passes[key] = Pass(trainer, process_set, batch, trains)
        found: Pass = passes[key]
    elif trains:
        known = _eager.get(id(trainer))
        if known is None or known.step is not share.current():
            known = _eager[id(trainer)] = Pass(trainer, process_set, batch, trains)
        found = known
    else:
        known = calls.forward if calls is not None else None
        found = known or Pass(trainer, process_set, batch, trains)
        if calls is not None:
            calls.forward = found
    _last_plans[id(process_set), trains] = found.plan
    return found


def is_outside() -> bool:
    """Return whether this code is in no step, and in no call of a layer."""
    is_plain = tf.executing_eagerly() and not tape_record.could_possibly_record()
    return is_plain and _calls.get() is None and share.current() is None


def end_pass(trainer: Trainer, variables: Sequence[Any] | None) -> tf.Tensor | None:
    """End the pass whose gradients were reduced, and return the answer to its first message."""
    if tf.executing_eagerly():
        found = _eager.pop(id(trainer), None)
    else:
        passes = getattr(tf_ops.get_default_graph(), "_ringar_passes", {})
        found = passes.pop((id(trainer), True), None)
    if found is None:
        return None
    found.plan.variables = variables
    return found.answer


def join_forward(process_set: ProcessSet | None, size: int) -> None:
    """Take part in the forward passes of the other ranks until none has data.

    Args:
        process_set: the ranks.
        size: their number.

    Raises:
        ValueError: this rank has never had a batch itself.
    """
    key = id(process_set)
    plan = _last_plans.get((key, False)) or _last_plans.get((key, True))
    while round(float(ask(process_set, True, FORWARD)[1])) < size:
        if plan is None:
            raise ValueError(
                f"rank {place.rank()} | weights that are sharded: expected at least one batch on "
                "every rank, received none on this one, which so does not know what the others "
                "gather; give it one"
            )
        for gather in plan.gathers:
            gather()


def _refuse_nested(graph: Any) -> None:
    kinds = (
        branch_graphs.CondBranchFuncGraph,
        branch_graphs.WhileBodyFuncGraph,
        branch_graphs.WhileCondFuncGraph,
    )
    outer = getattr(graph, "outer_graph", None)
    if isinstance(graph, kinds) or getattr(outer, "_ringar_passes", None):
        raise UnsupportedError(
            f"rank {place.rank()} | weights that are sharded: expected a layer whose weights are "
            "gathered once in a step, received one in a loop, a branch or a tf.function inside "
            "the model; gather it with the layer around it: ringar.gather_together(layer)"
        )
