"""A forward pass with its backward pass, in which sharded weights are gathered layer by layer.

In a graph each trace is a pass, in eager code each step. A pass begins with a message: whether this
rank has data. A rank without any repeats the plan of a pass that it has traced or run before.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from ringar.collectives import Average, shares
from ringar.collectives.compression import Compression
from ringar.collectives.shares import Control
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import share
from ringar.keras.zero import graphs
from ringar.keras.zero.session import SESSION, Call, Passes, Phase
from ringar.keras.zero.weight_slice import WeightSlice


@dataclass
class Plan:
    """Hold the collectives of a pass in their order, for a rank without data that repeats them.

    Attributes:
        gathers: those of the forward pass.
        entries: each runs one collective, and adds the gradients that it gets to its argument, by
            the keys of slices.
        variables: those of the step that ends the pass, once it has come.
        record: the record of the training step, if it is one.
    """

    gathers: list[Callable[[], Any]] = field(default_factory=list)
    entries: list[Callable[[dict[Any, tf.Tensor]], Any]] = field(default_factory=list)
    variables: Sequence[Any] | None = None
    record: share.Record | None = None

    def repeat(self) -> dict[Any, tf.Tensor]:
        """Run all collectives without data, and return the reduced gradients of slices."""
        gradients: dict[Any, tf.Tensor] = {}
        for entry in self.entries:
            entry(gradients)
        return gradients


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
        trainer: reduces gradients; None: no step follows, or frozen weights have no trainer.
        process_set: the ranks.
        batch: tensors of the batch.
    """

    def __init__(
        self, trainer: Trainer | None, process_set: ProcessSet | None, batch: Sequence[Any]
    ) -> None:
        self.trainer, self.process_set = trainer, process_set
        self.graph = graphs.graph()
        self.step = share.current()
        self.plan = Plan()
        self.units: list[Any] = []
        self.groups: dict[int, Any] = {}
        self.numbers = itertools.count(1)
        self._weight: tf.Tensor | None = None
        # A graph whose iterator has ended runs what does not depend on the batch.
        with tf.control_dependencies(local_tensors(batch)):
            if trainer is not None:
                self.answer = trainer.tell(self.plan)
            else:
                self.answer = ask(process_set, False, FORWARD)

    def weight(self) -> tf.Tensor:
        """Return the weight of this rank in averages of gradients."""
        if self.trainer is None:
            raise ValueError(
                f"rank {place.rank()} | gradients of sharded weights: expected an optimizer that "
                'was built with shard="weights" and these weights, received none; call '
                "optimizer.build(model.trainable_variables) on every rank first"
            )
        if self._weight is None or (self.graph is not None and not local_tensors([self._weight])):
            with tf.control_dependencies(local_tensors([self.answer])):
                self._weight = self.trainer.weigh(self.plan)
            repeat_rows = self.trainer.repeat_rows
            self.plan.entries.append(lambda _: repeat_rows())
        return self._weight


def local_tensors(tensors: Sequence[Any]) -> list[tf.Tensor]:
    """Return those of `tensors` that are of the graph under construction, if there is one."""
    graph = graphs.graph()
    return [t for t in tensors if graph is not None and getattr(t, "graph", None) is graph]


FIT = "fit"
"""The name of the function whose passes end with a step."""

_OF_GRAPH = "_ringar_passes"
"""The attribute of a graph with its passes, which hold its tensors and so must not outlive it."""


def current(trainer: Trainer | None, process_set: ProcessSet | None) -> Pass:
    """Return the pass that is traced or runs, of the weights that a trainer trains."""
    call, phase, graph = SESSION.scope.call, SESSION.phase, graphs.graph()
    if phase is not Phase.TRAINING:
        trainer = None  # a forward pass has one message, whatever trains its weights
    elif trainer is None:
        trainer = _trainer_of_step(process_set)
    if graph is not None:
        _refuse_nested(graph, call)
    passes = _passes(graph, call, phase)
    pass_ = passes.get((trainer, phase))
    is_over = graph is None and pass_ is not None and pass_.step is not share.current()
    if pass_ is None or is_over:
        pass_ = Pass(trainer, process_set, [] if call is None else call.batch)
        passes[trainer, phase] = pass_
    _remember(pass_.plan, phase)
    return pass_


def _passes(graph: Any, call: Call | None, phase: Phase) -> Passes:
    """Return the passes of a graph, of an eager training step, or of an eager call."""
    if graph is None:
        return SESSION.passes if phase is Phase.TRAINING or call is None else call.passes
    if not hasattr(graph, _OF_GRAPH):
        setattr(graph, _OF_GRAPH, {})
    passes: Passes = getattr(graph, _OF_GRAPH)
    return passes


def _remember(plan: Plan, phase: Phase) -> None:
    """Remember a plan for the ranks without data of later passes, which may not be traced again."""
    if phase is Phase.TRAINING:
        step = share.current()
        model, function = (None if step is None else step.model), FIT
    else:
        model, function = SESSION.scope.function or (None, "")
    if model is not None:
        SESSION.plans.setdefault(model, {})[function] = plan


def train_with(trainer: Trainer) -> None:
    """Gather frozen weights in the passes of `trainer`, in loops of the user."""
    SESSION.trainers[tuple(or_all(trainer.process_set).ranks)] = weakref.ref(trainer)


def _trainer_of_step(process_set: ProcessSet | None) -> Trainer | None:
    """Return the trainer of the step, whose pass also gathers weights without a trainer."""
    ranks, step = or_all(process_set).ranks, share.current()
    reference = SESSION.trainers.get(tuple(ranks))
    exchange = None if step is None else step.exchange
    reduction = None if exchange is None else exchange.reduction
    for trainer in (reduction, None if reference is None else reference()):
        if isinstance(trainer, Trainer) and or_all(trainer.process_set).ranks == ranks:
            return trainer
    return None


def end_pass(trainer: Trainer, variables: Sequence[Any] | None) -> tf.Tensor | None:
    """End the pass whose gradients were reduced, and return the answer to its first message."""
    passes = _passes(graphs.graph(), None, Phase.TRAINING)
    pass_ = passes.pop((trainer, Phase.TRAINING), None)
    if pass_ is None:
        return None
    pass_.plan.variables = variables
    return pass_.answer


def _refuse_nested(graph: Any, call: Call | None) -> None:
    around = [outer.graph for outer in (call, share.current()) if outer is not None]
    is_inner = getattr(getattr(graph, "outer_graph", None), _OF_GRAPH, None)
    if graphs.is_of_a_call(graph) or any(other is not graph for other in around) or is_inner:
        raise UnsupportedError(
            f"rank {place.rank()} | weights that are sharded: expected a layer whose weights are "
            "gathered once in a step, received one in a loop, a branch or a tf.function inside "
            "the model; gather the layer or the model that has the loop as one, before the first "
            "step, ringar.gather_together(layer), and call the function's code without tf.function"
        )
