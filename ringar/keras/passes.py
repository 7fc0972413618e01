"""A forward pass with its backward pass, in which sharded weights are gathered layer by layer.

In a graph each trace is a pass, in eager code each step. A pass begins with a message: whether this
rank has data. A rank without any repeats the plan of a pass that it has traced or run before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import keras
import tensorflow as tf
from tensorflow.python.eager import record as tape_record
from tensorflow.python.framework import ops as tf_ops

from ringar.collectives import Average, shares
from ringar.collectives.compression import Compression
from ringar.collectives.shares import Control
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import share
from ringar.sharding import call_time
from ringar.sharding.sharded_variable import WeightSlice


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


def without_gradients(collective: Callable[[], Any]) -> Callable[[dict[Any, tf.Tensor]], None]:
    """Return an entry of a plan that adds no gradients."""

    def entry(_: dict[Any, tf.Tensor]) -> None:
        collective()

    return entry


@runtime_checkable
class Trainer(Protocol):
    """Reduce the gradients of slices: the reduction of an optimizer."""

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
        self.units: list[Any] = []
        self.groups: dict[Any, Any] = {}
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
            self.plan.entries.append(without_gradients(self.trainer.repeat_rows))
        return self._weight


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
        self.graph = call_time.graph()
        self.forward: Pass | None = None


_calls: ContextVar[_Calls | None] = ContextVar("calls", default=None)
_eager: dict[Any, Pass] = {}
_trainers: dict[tuple[int, ...], weakref.ref[Trainer]] = {}
_plans: weakref.WeakKeyDictionary[keras.Model, dict[str, Plan]] = weakref.WeakKeyDictionary()
_forward: ContextVar[tuple[keras.Model, str] | None] = ContextVar("forward", default=None)
_FIT = "fit"


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
    if not trains:
        trainer = None  # a forward pass has one message, whatever trains its weights
    elif trainer is None:
        trainer = _trainer_of_step(process_set)
    if not tf.executing_eagerly():
        graph = tf_ops.get_default_graph()
        _refuse_nested(graph, calls)
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
    _note(found.plan, trains)
    return found


def train_with(trainer: Trainer) -> None:
    """Gather frozen weights in the passes of `trainer`, in loops of the user."""
    _trainers[tuple(or_all(trainer.process_set).ranks)] = weakref.ref(trainer)


def _trainer_of_step(process_set: ProcessSet | None) -> Trainer | None:
    """Return the trainer of the step, in whose pass weights are gathered that have none."""
    ranks, step = or_all(process_set).ranks, share.current()
    known = _trainers.get(tuple(ranks))
    exchange = None if step is None else step.exchange
    reduction = None if exchange is None else exchange.reduction
    for found in (reduction, None if known is None else known()):
        if isinstance(found, Trainer) and or_all(found.process_set).ranks == ranks:
            return found
    return None


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


@contextmanager
def forwards_of(model: keras.Model, function: str) -> Iterator[None]:
    """Return a context for forward passes, whose plan `join_forward` repeats.

    Args:
        model: the model.
        function: which function runs them: "evaluate" or "predict".
    """
    token = _forward.set((model, function))
    try:
        yield
    finally:
        _forward.reset(token)


def _note(plan: Plan, trains: bool) -> None:
    """Remember a plan for the ranks without data of later passes, which may not be traced again."""
    step = share.current()
    if trains:
        model, function = (None if step is None else step.model), _FIT
    else:
        model, function = _forward.get() or (None, "")
    if model is not None:
        _plans.setdefault(model, {})[function] = plan


def join_forward(process_set: ProcessSet | None, size: int) -> None:
    """Take part in the forward passes of the other ranks until none has data.

    Args:
        process_set: the ranks.
        size: their number.

    Raises:
        ValueError: this rank has never had a batch itself.
    """
    model, function = _forward.get() or (None, "")
    plans = {} if model is None else _plans.get(model, {})
    known = [plan for name, plan in plans.items() if name != _FIT]
    plan = next((p for p in (plans.get(function), *known, plans.get(_FIT)) if p is not None), None)
    while round(float(ask(process_set, True, FORWARD)[1])) < size:
        if plan is None:
            raise ValueError(
                f"rank {place.rank()} | weights that are sharded: expected at least one batch on "
                "every rank, received none on this one, which so does not know what the others "
                "gather; give it one"
            )
        for gather in plan.gathers:
            gather()


def trace_number() -> int | None:
    """Return the number of the traces of functions that a layer calls; None: no layer is called."""
    return None if _calls.get() is None else WeightSlice.made


def tracing_anew(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let TensorFlow trace functions anew that a layer calls, where other weights are sharded."""
    return call_time.tracing_anew(original, trace_number)


def _refuse_nested(graph: Any, calls: _Calls | None) -> None:
    step = share.current()
    around = [one.graph for one in (calls, step) if one is not None]
    is_inner = getattr(getattr(graph, "outer_graph", None), "_ringar_passes", None)
    if call_time.is_of_a_call(graph) or any(one is not graph for one in around) or is_inner:
        raise UnsupportedError(
            f"rank {place.rank()} | weights that are sharded: expected a layer whose weights are "
            "gathered once in a step, received one in a loop, a branch or a tf.function inside "
            "the model; gather the layer or the model that has the loop as one, before the first "
            "step, ringar.gather_together(layer), and call the function's code without tf.function"
        )
