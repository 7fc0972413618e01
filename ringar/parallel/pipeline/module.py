"""One module of a pipeline: receive, compute, send, and hold the batches in flight.

A batch is in flight from its forward to its backward action. A gradient tape holds the tensors that
the backward pass needs, the weights of the forward pass among them: an update gives a variable new
memory while a tape holds the old one. So each batch gets the gradient at the weights of its own
forward pass, whatever updates follow it, and nothing is computed twice.

A message forward ends with one number, the sum of the penalties (regularizers, `add_loss`) of the
modules so far. The last module adds it to its loss, and its gradient is sent back with the others,
so that the loss and all gradients are those of the whole model. A message backward ends with a
report, the metrics of the last module after that batch.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from ringar.parallel.pipeline.batch import Batch
from ringar.parallel.pipeline.cut import Network
from ringar.parallel.pipeline.messages import Messages
from ringar.parallel.pipeline.metrics import Metrics
from ringar.parallel.pipeline.schedule import Action, Schedule

_PENALTY = tf.TensorSpec([], tf.float32)
_REPORT = tf.TensorSpec([None], tf.float32)


@dataclasses.dataclass(frozen=True)
class Event:
    """Record one action of a module.

    Attributes:
        what: "forward", "backward", "learn" (a synthesizer), or "wait" for a message.
        batch: the number of the batch, from 0.
        begin: the begin, in seconds of `time.monotonic`.
        end: the end, in seconds of `time.monotonic`.
    """

    what: str
    batch: int
    begin: float
    end: float


@dataclasses.dataclass(frozen=True)
class _InFlight:
    tape: tf.GradientTape
    received: list[tf.Tensor]  # the floating ones, which have a gradient
    outputs: list[tf.Tensor]


class Module:
    """Run one module on this rank.

    Args:
        network: the network of the module.
        schedule: the schedule of the module.
        before: the rank of the previous module; None for the first one.
        after: the rank of the next module; None for the last one.
        metrics: computes loss and metrics in the last module.
        shrinking: multiplies the gradients for the previous module.
        compiled: compiles a function, as `tf.function` does.
    """

    def __init__(
        self,
        network: Network,
        schedule: Schedule,
        *,
        before: int | None,
        after: int | None,
        metrics: Metrics,
        shrinking: float = 1.0,
        compiled: Callable[[Any], Any] = tf.function,
    ) -> None:
        self.network, self.schedule = network, schedule
        self.events: list[Event] | None = None
        self.report: tf.Tensor | None = None  # of the last backward action
        self._previous, self._next = before, after
        self._messages = self._open()
        self._metrics, self._shrinking = metrics, shrinking
        self._in_flight: collections.deque[_InFlight] = collections.deque()
        self._forward_count = self._backward_count = 0  # batches
        self._forward = compiled(self._outputs)
        self._sum = compiled(_sum)

    @property
    def variables(self) -> list[Any]:
        """The trainable variables of the network."""
        return list(self.network.model.trainable_variables)

    @property
    def in_flight(self) -> int:
        """The number of batches between their forward and their backward action."""
        return len(self._in_flight)

    def step(self, batch: Batch) -> list[Any] | None:
        """Run the actions of one step.

        Returns:
            The gradients of `variables`; None before the first backward action.
        """
        parts = iter(batch.cut(self.schedule.parts))
        actions = self.schedule.step(min(self.schedule.parts, batch.rows))
        gradients: list[list[Any]] = []
        for action in actions:
            if action is Action.FORWARD:
                self._run_forward(next(parts))
            elif len(self._in_flight) > self.schedule.staleness:
                gradients.append(self._run_backward())
        self._forward_count += 1
        return self._total(gradients)

    def drain(self) -> Iterator[list[Any]]:
        """Yield the gradients of the batches in flight, oldest first."""
        while self._in_flight:
            gradients = self._total([self._run_backward()])
            assert gradients is not None
            yield gradients

    def begin(self) -> None:
        """Start with an empty pipeline after a restart of ringar, which leaves no messages."""
        if not self._messages.are_current:
            self._messages = self._open()
            self._in_flight.clear()

    def close(self) -> None:
        """Free the memory that the ranks share. Collective over the model group."""

    def _open(self) -> Messages:
        return Messages([r for r in (self._previous, self._next) if r is not None])

    def predict(self, batch: Batch, scores: bool = False) -> Any:
        """Send one batch forward, without training.

        Args:
            batch: the batch.
            scores: whether the last module updates the metrics.

        Returns:
            The outputs in the last module, None in others.
        """
        received = self._received("evaluation")
        inputs, penalty, targets, share = self._arguments(batch, received)
        outputs = self._forward(inputs, penalty, targets if scores else None, share, training=False)
        if self._next is None:
            return outputs
        self._messages.send(outputs, self._next, "evaluation")
        return None

    def _run_forward(self, part: Batch) -> None:
        """Run a forward action."""
        received = self._received("forward")
        with self._recorded("forward", self._forward_count), tf.GradientTape() as tape:
            floats = [tensor for tensor in received if tensor.dtype.is_floating]
            tape.watch(floats)
            outputs = self._forward(*self._arguments(part, received), training=True)
        if self._next is not None:
            self._messages.send(outputs, self._next, "forward")
        targets = [tensor for tensor in outputs if tensor.dtype.is_floating]
        self._in_flight.append(_InFlight(tape, floats, targets))

    def _run_backward(self) -> list[Any]:
        """Run the backward action of the oldest part in flight; return its gradients."""
        part = self._in_flight.popleft()
        upstream = self._upstream(part)
        with self._recorded("backward", self._backward_count):
            variables = self.variables
            sources = [*variables, *part.received]
            gradients = part.tape.gradient(part.outputs, sources, output_gradients=upstream)
            of_variables, back = gradients[: len(variables)], gradients[len(variables) :]
            if self._previous is not None:
                gradients = [*self._shrunk(part.received, back), self.report]
                self._messages.send(gradients, self._previous, "backward")
        return list(of_variables)

    def _upstream(self, part: _InFlight) -> list[tf.Tensor] | None:
        """Return the gradients of a part's outputs; None in the last module, which has the loss."""
        if self._next is None:
            self.report = self._metrics.report()
            return None
        with self._recorded("wait", self._backward_count):
            specs = [*map(_spec, part.outputs), _REPORT]
            *upstream, self.report = self._messages.recv(specs, self._next, "backward")
        return upstream

    def _outputs(
        self,
        inputs: list[Any],
        penalty: tf.Tensor,
        targets: Any,
        share: tf.Tensor,
        training: bool,
    ) -> Any:
        outputs = self.network.model(inputs, training=training)
        if self._next is None:
            if training:
                return [self._metrics.objective(outputs, targets, penalty, share)]
            if targets is not None:
                self._metrics.score(outputs, targets, penalty)
            return outputs
        losses = self.network.model.losses
        loss_sum = tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) if losses else 0.0
        return [*keras.tree.flatten(outputs), penalty + loss_sum]

    def _arguments(self, batch: Batch, received: list[tf.Tensor]) -> tuple[Any, ...]:
        read = [batch.inputs[i] for i in self.network.reads]
        *tensors, penalty = received or [tf.zeros([])]
        targets = batch.targets if self._next is None else None
        return [*read, *tensors], penalty, targets, tf.constant(batch.share)

    def _received(self, name: str) -> list[tf.Tensor]:
        if self._previous is None:
            return []
        with self._recorded("wait", self._forward_count):
            specs = [*self.network.receives, _PENALTY]
            return self._messages.recv(specs, self._previous, name)

    def _shrunk(self, received: Sequence[tf.Tensor], gradients: Sequence[Any]) -> list[tf.Tensor]:
        dense = [
            tf.zeros_like(tensor) if gradient is None else tf.convert_to_tensor(gradient)
            for tensor, gradient in zip(received, gradients, strict=True)
        ]
        if self._shrinking == 1.0:
            return dense
        return [gradient * tf.cast(self._shrinking, gradient.dtype) for gradient in dense]

    def _total(self, gradients: list[list[Any]]) -> list[Any] | None:
        if not gradients:
            return None
        self._backward_count += 1
        return gradients[0] if len(gradients) == 1 else list(self._sum(gradients))

    @contextmanager
    def _recorded(self, action: str, batch: int) -> Iterator[None]:
        begin = time.monotonic()
        yield
        if self.events is not None:
            self.events.append(Event(action, batch, begin, time.monotonic()))


def _spec(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _sum(gradients: list[list[Any]]) -> list[Any]:
    """Return the sum of the parts' gradients; None where there is none."""

    def total(parts: tuple[Any, ...]) -> Any:
        terms = [tf.convert_to_tensor(part) for part in parts if part is not None]
        return tf.add_n(terms) if terms else None

    return [total(parts) for parts in zip(*gradients, strict=True)]
