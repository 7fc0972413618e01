"""The share of a rank in a training step, and the record of the step's collectives.

The gradient of a global batch is the mean of the ranks' gradients, each weighted by its number of
rows. `rows` returns this number for the step that is traced or runs: Keras' `train_step` gets its
batch here, and in loops without one the last `keras.losses.Loss` under a gradient tape tells. The
number travels with the gradients (`ringar.collectives.shares`).

A step is recorded while it is traced. A rank without data repeats the record
(`ringar.keras.joining`).
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from ringar import hooks
from ringar.collectives.compiled import is_compiling
from ringar.collectives.ops import Average
from ringar.collectives.shares import WHOLE
from ringar.keras import accumulation, loss_rows, tuned
from ringar.keras.exchange import Exchange, exchange_of
from ringar.sharding.slots import inner_optimizer, optimizers_within

_numbers = itertools.count()


class Record:
    """Repeat a collective of a step without data.

    Args:
        run: runs the collective and returns the number of idle ranks.
        compiled: whether XLA has compiled it.
        has_rows: whether ranks told their rows.
        begins_step: whether a training step begins with it.
    """

    def __init__(
        self, run: Callable[[], Any], compiled: bool, has_rows: bool, begins_step: bool = False
    ) -> None:
        self._run = tf.function(run, jit_compile=True, autograph=False) if compiled else run
        self.number = next(_numbers)
        self._settings = tuned.current()
        self.has_rows = has_rows
        self.begins_step = begins_step

    def repeat(self) -> int:
        """Take part in the collective and return the number of ranks that have no data either."""
        token = _idle.set(self)
        try:
            with tuned.using(self._settings):
                return round(float(np.asarray(self._run())))
        finally:
            _idle.reset(token)


class Step:
    """Hold the facts about the training step that is traced or runs.

    Attributes:
        model: the model, while the step is traced or runs.
        batch: the first tensor of this rank's batch, or None.
        exchange: that of the optimizer or the tape, once it is known.
        graph: the graph in which it is traced; None: it runs in eager code.
        is_of_keras: whether it is Keras' own `train_step`, not one of the user.
        is_watched: whether `ringar.callbacks.Distributed` looks after the weights.
        records: its collectives, in order.
        terms: the number of losses that are global.
        is_marked: whether a reduction has told that a step begins.
        accumulates: whether gradients are added up in variables before they are reduced.
    """

    def __init__(self, model: keras.Model, batch: Any, exchange: Exchange | None) -> None:
        self.model: keras.Model | None = model
        self.batch = batch
        self.exchange = exchange
        self.graph = None if tf.executing_eagerly() else tf_ops.get_default_graph()
        self.is_of_keras = type(model).train_step is keras.Model.train_step
        self.is_watched = is_watched(model)
        self.records: list[Record] = []
        self.terms = 0
        self.is_marked = False
        self.accumulates = False


class _Answer:
    """Hand the answer to a control vector to the record that is repeated."""

    value: Any = None


_answer = _Answer()
_step: ContextVar[Step | None] = ContextVar("step", default=None)
_idle: ContextVar[Record | None] = ContextVar("idle", default=None)
_steps: weakref.WeakKeyDictionary[keras.Model, Step] = weakref.WeakKeyDictionary()


def step_of(model: keras.Model) -> Step | None:
    """Return the training step of `model` that was traced last."""
    return _steps.get(model)


def return_to(model: keras.Model, step: Step | None) -> None:
    """Make `step` the training step of `model`, whose function is used again."""
    if step is not None:
        _steps[model] = step


def record_of(variable: Any) -> Record | None:
    """Return the record of the reduction whose first variable this is, outside a `train_step`."""
    return getattr(variable, "_ringar_record", None)


def current() -> Step | None:
    """Return the training step that is traced or runs."""
    return _step.get()


def idle() -> Record | None:
    """Return the record that this rank repeats, if it has no data."""
    return _idle.get()


def leave_answer(answer: Any) -> None:
    """Leave the answer to the control vector of a reduction, for the record that repeats it."""
    if _idle.get() is not None:
        _answer.value = answer


def take_answer() -> Any:
    """Return the answer that the last reduction has left."""
    answer, _answer.value = _answer.value, None
    return answer


def rows() -> Any:
    """Return the rows of this rank's batch, a number or a float32 scalar; `WHOLE`: unknown."""
    if (record := _idle.get()) is not None:
        return 0.0 if record.has_rows else WHOLE
    step = _step.get()
    batch = step.batch if step is not None else loss_rows.latest()
    if batch is None:
        return WHOLE
    if isinstance(batch, int):
        return float(batch)
    if isinstance(batch, tf.RaggedTensor):
        return tf.cast(batch.nrows(), tf.float32)
    if isinstance(batch, tf.SparseTensor):
        return tf.cast(batch.dense_shape[0], tf.float32)
    shape = tf.TensorShape(batch.shape)  # eager steps of `train_on_batch` get NumPy arrays
    if shape.rank and shape[0] is not None:
        return float(shape[0])
    return tf.cast(tf.shape(batch)[0], tf.float32)


def observing_steps(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let Keras tell the batch of each training step."""

    def make_train_function(self: Any, force: bool = False) -> Any:
        if self.train_function is None or force:
            _observe_step(self)
        return make(self, force)

    return make_train_function


def watch(model: keras.Model) -> None:
    """Observe the steps of `model`, whose weights `ringar.callbacks.Distributed` looks after.

    Keras builds the training function anew if it was built before.
    """
    hooks.install("distributed training")
    object.__setattr__(model, "_ringar_is_watched", True)
    if not hasattr(model.train_step, "_ringar"):
        model.train_function = None


def is_watched(model: keras.Model) -> bool:
    """Return whether someone looks after the weights of `model`: see `watch`."""
    return hasattr(model, "_ringar_is_watched")


def _observe_step(model: Any) -> None:
    train_step = model.train_step
    if hasattr(train_step, "_ringar"):
        return

    @functools.wraps(train_step)
    def observed(data: Any) -> Any:
        with _stepping(model, data):
            return train_step(data)

    observed._ringar = True  # type: ignore[attr-defined]
    # Keras' own __setattr__ would track it.
    object.__setattr__(model, "train_step", observed)


@contextmanager
def _stepping(model: Any, data: Any) -> Iterator[None]:
    inputs = keras.utils.unpack_x_y_sample_weight(data)[0]
    batch = next(
        (part for part in tf.nest.flatten(inputs) if getattr(part, "shape", ()) != ()), None
    )
    optimizers = optimizers_of(model)
    for optimizer in optimizers:
        if (exchange := exchange_of(optimizer)) is not None:
            exchange.slices.prepare(optimizer, model, inputs)
    step = Step(model, batch, next(filter(None, map(exchange_of, optimizers)), None))
    token = _step.set(step)
    try:
        with tuned.using(tuned.of(model)):
            yield
        if batches_of(model) is not None or _accumulates(step):
            _batches(model).note(rows())
    finally:
        _step.reset(token)
    step.model = step.batch = None  # the keys of `_steps` are weak; a tensor of the graph
    # An eager step that only adds up gradients is not the one that an idle rank repeats.
    before = _steps.get(model)
    if step.is_marked or before is None or before.exchange is not step.exchange:
        _steps[model] = step


def _accumulates(step: Step) -> bool:
    """Return whether ranks average gradients that the step has added up in variables."""
    exchange = step.exchange
    if step.is_of_keras or exchange is None or exchange.reduction.is_alone:
        return False
    if not exchange.period.in_every_step or exchange.reduction.op is not Average:
        return False
    # A graph tells by its gradients, an eager step by its lack of them.
    return step.accumulates or (tf.executing_eagerly() and not step.is_marked)


def _batches(model: Any) -> accumulation.Batches:
    if not hasattr(model, "_ringar_batches"):
        object.__setattr__(model, "_ringar_batches", accumulation.Batches())
    batches: accumulation.Batches = model._ringar_batches
    return batches


def batches_of(model: Any) -> accumulation.Batches | None:
    """Return the notes of steps that add up gradients on their batches; None: no such step."""
    return getattr(model, "_ringar_batches", None)


def optimizers_of(model: keras.Model) -> list[Any]:
    """Return the optimizers of `model` and of its parts, that of `compile` first."""
    models = [part for part in model._flatten_layers() if isinstance(part, keras.Model)]
    optimizers: dict[int, Any] = {}
    for part in [model, *models]:
        values = [getattr(part, "optimizer", None), *vars(part).values()]
        optimizers |= {id(x): x for x in optimizers_within(values)}
    inner = {id(inner_optimizer(x)) for x in optimizers.values() if inner_optimizer(x) is not x}
    return [x for key, x in optimizers.items() if key not in inner]


def exchanges_of(model: keras.Model) -> list[Exchange]:
    """Return the exchanges of the optimizers of `model`, at least one."""
    return exchanges_among(optimizers_of(model))


def exchanges_among(optimizers: Sequence[Any]) -> list[Exchange]:
    """Return the exchanges of distributed optimizers; where there is none, that of a tape."""
    return [*filter(None, map(exchange_of, optimizers))] or [Exchange()]


def record(
    reduce: Callable[[Sequence[Any]], tf.Tensor],
    gradients: Sequence[Any],
    variables: Sequence[Any] | None,
) -> bool:
    """Record a reduction; return whether a training step begins with it.

    Args:
        reduce: reduces gradients like these and returns the number of idle ranks.
        gradients: tensors, `tf.IndexedSlices` or None.
        variables: their variables, if they are known.
    """
    if (repeated := _idle.get()) is not None:
        return repeated.begins_step
    step = _step.get()
    begins_step = step is not None and not step.is_marked
    compiled = is_compiling()
    like = [
        _describe(g, v, compiled)
        for g, v in zip(gradients, variables or [None] * len(gradients), strict=True)
    ]
    row_count = rows()
    done = Record(
        lambda: reduce([None if make is None else make() for make in like]),
        compiled,
        isinstance(row_count, tf.Tensor) or row_count != WHOLE,
        begins_step,
    )
    if step is not None:
        step.is_marked = True
        step.accumulates |= accumulation.come_from_variables(gradients, variables)
        step.records.append(done)
    elif variables:
        variables[0]._ringar_record = done
    return begins_step


def _describe(gradient: Any, variable: Any, compiled: bool) -> Callable[[], Any] | None:
    """Return a function that makes zeros like `gradient`, which holds no tensor of a graph."""
    if gradient is None:
        return None
    if not isinstance(gradient, tf.IndexedSlices):
        static = gradient.shape.is_fully_defined()
        shape = gradient.shape.as_list() if static else [int(d) for d in variable.shape]
        return functools.partial(tf.zeros, shape, gradient.dtype)
    indices = tf.convert_to_tensor(gradient.indices)
    dtype, index, tail = gradient.dtype, indices.dtype, gradient.values.shape[1:]
    # Compiled code gathers equally many rows from all ranks; otherwise none are enough.
    count = (indices.shape[0] if compiled else None) or 0
    full = [int(d) for d in variable.shape] if variable is not None else None

    def slices() -> tf.IndexedSlices:
        values = tf.zeros([count, *tail], dtype)
        shape = None if full is None else tf.constant(full, index)
        return tf.IndexedSlices(values, tf.zeros([count], index), shape)

    return slices
