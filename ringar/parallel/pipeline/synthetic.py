"""Modules that do not wait for gradients: decoupled neural interfaces.

Jaderberg et al., "Decoupled neural interfaces using synthetic gradients" (ICML 2017). Module k
sends its activations h_k forward and updates its weights at once, with a synthetic gradient:

    s_k      = M_k(h_k[, y])                      the synthetic gradient; true in the last module
    theta_k <- theta_k - alpha * (dh_k/dtheta_k)^T s_k
    g_k      = (dh_(k+1)/dh_k)^T ((1 - lambda) s_(k+1) + lambda g_(k+1))
    M_k      learns from g_k by the loss |M_k(h_k[, y]) - g_k|^2, when g_k comes

With lambda = 0 the module above sends g_k in the same step, as soon as it has s_(k+1). It is
bootstrapped: built on a prediction, except at the top. With lambda = 1 it is the true gradient at
the weights that the batch has met, after the way through all modules. BP(lambda) mixes both, as
TD(lambda) mixes returns; the module above then keeps the batch until its own gradient has come, and
goes back through it a second time.

A module waits for activations from below, unless it has synthetic inputs I_k(x), which learn from
the activations that come later. It waits for a gradient from above only while `ahead` batches have
none.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.job.process_sets import ProcessSet
from ringar.parallel.pipeline.batch import Batch
from ringar.parallel.pipeline.cut import Network
from ringar.parallel.pipeline.decoupling import TRUE, Synthesizers
from ringar.parallel.pipeline.mailboxes import Above, Below, Gradient, Mailboxes
from ringar.parallel.pipeline.messages import Messages
from ringar.parallel.pipeline.metrics import Metrics
from ringar.parallel.pipeline.module import Module
from ringar.parallel.pipeline.recording import Log, Rate, Replayed, ReplayedAbove, ReplayedBelow
from ringar.parallel.pipeline.schedule import Schedule

_NO_REPORT = np.zeros(0, np.float32)
_OF_PENALTY = 1.0
"""The gradient of the loss with respect to the penalties, which are added to it."""


@dataclasses.dataclass(frozen=True)
class _Pass:
    """Hold a batch from its forward pass until its gradient has come.

    Attributes:
        number: the number of its messages.
        rows: the number of examples.
        tape: the tape of the forward pass; None after the backward pass.
        outputs: the floating outputs.
        received: the floating tensors from the module below.
        synthesizer_inputs: the inputs of the synthesizer of gradients: activations, labels.
        predicted: its prediction.
    """

    number: int
    rows: int
    tape: tf.GradientTape | None
    outputs: list[tf.Tensor]
    received: list[tf.Tensor]
    synthesizer_inputs: list[tf.Tensor] = dataclasses.field(default_factory=list)
    predicted: list[tf.Tensor] = dataclasses.field(default_factory=list)


class SyntheticModule(Module):
    """Run one module on this rank, without waiting for gradients.

    Args:
        network: the network of the module.
        synthesizers: those of this module, and the arguments.
        ranks: the ranks of the model group, in the order of the modules; None to replay messages.
        module: the module, counted from 0.
        metrics: computes loss and metrics in the last module.
        shrinking: multiplies the gradients for the previous module.
        compiled: compiles a function, as `tf.function` does.

    Attributes:
        gradient: the synthesizer of gradients, or None.
        inputs: the synthesizer of inputs, or None.
        log: the messages that the module has taken since `record`; None before.
    """

    def __init__(
        self,
        network: Network,
        synthesizers: Synthesizers,
        *,
        ranks: ProcessSet | None,
        module: int,
        metrics: Metrics,
        shrinking: float = 1.0,
        compiled: Callable[[Any], Any] = tf.function,
    ) -> None:
        self._ranks, modules = ranks, synthesizers.modules
        world = ranks.ranks if ranks is not None else list(range(modules))
        super().__init__(
            network,
            Schedule(modules - 1 - module, 0),
            before=world[module - 1] if module > 0 else None,
            after=world[module + 1] if module < modules - 1 else None,
            metrics=metrics,
            shrinking=shrinking,
            compiled=compiled,
        )
        self._plan, self._module, self._seed = synthesizers.plan, module, synthesizers.seed
        self.gradient, self.inputs = synthesizers.predictors(compiled)
        self._labels = synthesizers.labels
        self._lambda = 0.0 if self._plan.kind == TRUE else self._plan.bp_lambda
        self.log: Log | None = None
        self._rate: Rate | None = None
        self._replayed: Replayed | None = None
        self._boxes: Mailboxes | None = None
        self._above: Above | ReplayedAbove | None = None
        self._below: Below | ReplayedBelow | None = None
        self._number = 0  # of the next batch, since the mailboxes were opened
        self._pending: collections.deque[_Pass] = collections.deque()
        self._unseen: collections.deque[list[tf.Tensor]] = collections.deque()
        self._penalty = 0.0
        self._is_learning = False
        self._has_predicted = False  # in this step

    @property
    def in_flight(self) -> int:
        """The number of batches for which no gradient has come."""
        return len(self._pending)

    def record(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Begin a log of the messages, with no batch in flight."""
        values = [_values(variables) for variables in self._state(optimizer)]
        self.log, self._rate = Log(self._forward_count, values), Rate(optimizer)

    def replay(self, log: Log, optimizer: keras.optimizers.Optimizer) -> None:
        """Take state and messages from a log from now on, and send none."""
        for variables, values in zip(self._state(optimizer), log.begin, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        self._forward_count = log.step
        self._replayed = Replayed(log, Rate(optimizer))
        self._above = None if self._next is None else self._replayed.above
        self._below = None if self._previous is None else self._replayed.below

    def step(self, batch: Batch) -> list[Any] | None:
        """Take a step: forward, update, and learn from the gradients that have come.

        Returns:
            The gradients of `variables`; None if the module does not update in this step.
        """
        self._open_for(batch.rows)
        if self.log is not None and self._rate is not None:
            self._rate.note(self.log, self._forward_count)
        updates = self._draw()
        self._learn(-1)
        part, outputs = self._pass_forward(batch, updates)
        if self._next is None:
            self.report = self._metrics.report()
            gradients = self._pass_backward(part, None) if updates else None
        else:
            upstream = self._pass_on(part, outputs, batch)
            self._has_predicted = True
            updates = updates and upstream is not None
            gradients = self._pass_backward(part, upstream) if updates else None
        if not updates:
            self._send_back(part, None)
        self._has_predicted = False
        self._number += 1
        self._forward_count += 1
        return gradients

    def drain(self) -> Iterator[list[Any]]:
        """Wait for the gradients of all batches, which synthesizers learn from; yield nothing."""
        self._learn(self._number - 1)
        self._learn_inputs(self._number - 1, self._number - 1)
        return iter(())

    def begin(self) -> None:
        """Start with empty mailboxes after a restart of ringar, which has closed them."""
        if self._replayed is None and not self._messages.are_current:
            self._messages, self._boxes = self._open(), None
            self._above = self._below = None
            self._pending.clear()
            self._unseen.clear()

    def close(self) -> None:
        """Close the mailboxes. Collective over the model group."""
        if self._boxes is not None and self._messages.are_current:
            self._boxes.close()
        self._boxes = self._above = self._below = None

    def _state(self, optimizer: keras.optimizers.Optimizer) -> list[list[keras.Variable]]:
        """Return the variables that steps change."""
        predictors = [holder for holder in (self.gradient, self.inputs) if holder is not None]
        pairs = [(self.network.model, optimizer), *((p.model, p.optimizer) for p in predictors)]
        return [list(holder.variables) for pair in pairs for holder in pair]

    def _open(self) -> Messages:
        return super()._open() if self._ranks is not None else Messages([])

    # Forward ------------------------------------------------------------------------------------

    def _open_for(self, rows: int) -> None:
        """Open mailboxes for batches of this size. Collective if there are none so large."""
        if self._replayed is not None:
            self._replayed.begin(self._forward_count)
            return
        if self._boxes is not None and rows <= self._boxes.rows:
            return
        self.drain()
        self.close()
        assert self._ranks is not None
        self._boxes = Mailboxes(
            self._ranks, self.network.sends, self.network.receives, rows, self._plan.ahead
        )
        self._above, self._below = self._boxes.above, self._boxes.below
        self._number = 0

    def _draw(self) -> bool:
        """Return whether the module updates in this step."""
        if self._plan.update_probability == 1.0:
            return True
        random = np.random.default_rng((self._seed, self._module, self._forward_count))
        return bool(random.random() < self._plan.update_probability)

    def _pass_forward(self, batch: Batch, updates: bool) -> tuple[_Pass, list[tf.Tensor]]:
        """Run the network; return the pass, and all outputs."""
        received = self._activations(batch)
        floats = [tensor for tensor in received if tensor.dtype.is_floating]
        arguments = self._arguments(batch, [*received, tf.constant(self._penalty, tf.float32)])
        with (
            self._recorded("forward", self._forward_count),
            tf.GradientTape(persistent=self._goes_back_twice) as tape,
        ):
            tape.watch(floats)
            outputs = self._forward(*arguments, training=True)
        targets = [tensor for tensor in outputs if tensor.dtype.is_floating]
        tape_of_updates = tape if updates else None
        return _Pass(self._number, batch.rows, tape_of_updates, targets, floats), outputs

    def _activations(self, batch: Batch) -> list[tf.Tensor]:
        """Return the activations from below, true or predicted ones."""
        if self._below is None:
            return []
        if self.inputs is not None:
            inputs = [tf.convert_to_tensor(tensor) for tensor in batch.inputs]
            self._unseen.append(inputs)
            self._learn_inputs(self._number - self._plan.ahead, self._number)
            return self.inputs.predict(inputs)
        with self._recorded("wait", self._forward_count):
            (tensors,) = self._take_activations(self._number, self._number)
        return tensors

    def _pass_on(
        self, part: _Pass, outputs: list[tf.Tensor], batch: Batch
    ) -> list[tf.Tensor] | None:
        """Send the activations on; return their gradients, synthetic or true, if there are any."""
        *tensors, penalty = outputs
        floats = [tensor for tensor in tensors if tensor.dtype.is_floating]
        assert self._above is not None
        with self._recorded("wait", self._forward_count):
            self._learn(self._number - self._plan.ahead)
            self._above.send(part.number, part.rows, tensors, float(penalty), self._learn_meanwhile)
        predicted: list[tf.Tensor] = []
        inputs = [*floats, *(self._labels(batch.y) if self._labels is not None else ())]
        if self.gradient is not None:
            predicted = self.gradient.predict(inputs)
        elif self._plan.kind != TRUE:
            predicted = [tf.zeros_like(tensor) for tensor in floats]
        tape = part.tape if self._goes_back_twice else None
        self._pending.append(
            dataclasses.replace(part, tape=tape, synthesizer_inputs=inputs, predicted=predicted)
        )
        if self._plan.kind != TRUE:
            return predicted
        with self._recorded("wait", self._forward_count):
            return self._learn(self._number)

    # Backward -----------------------------------------------------------------------------------

    @property
    def _goes_back_twice(self) -> bool:
        """Whether a batch waits for its gradient before it goes back to the module below."""
        return self._lambda > 0 and self._next is not None and self._previous is not None

    def _pass_backward(self, part: _Pass, upstream: list[tf.Tensor] | None) -> list[Any]:
        """Return the gradients of `variables`, and send those of the activations received."""
        with self._recorded("backward", self._forward_count):
            variables = self.variables
            sources = variables if self._goes_back_twice else [*variables, *part.received]
            gradients = _gradients(part, sources, upstream)
            if not self._goes_back_twice:
                self._send_back(part, gradients[len(variables) :])
        return list(gradients[: len(variables)])

    def _send_back(self, part: _Pass, gradients: list[Any] | None) -> None:
        if self._below is None:
            return
        tensors = None if gradients is None else self._shrunk(part.received, gradients)
        report = _NO_REPORT if self.report is None else self.report.numpy()
        self._below.send(part.number, part.rows, tensors, report, self._learn_meanwhile)

    # Learning -----------------------------------------------------------------------------------

    def _learn(self, through: int) -> list[tf.Tensor] | None:
        """Let the synthesizer of gradients learn from the gradients that have come.

        Args:
            through: the number of a batch whose gradient is waited for; -1 for none.

        Returns:
            The last gradient; None if there is none.
        """
        truth: list[tf.Tensor] | None = None
        self._is_learning = True
        try:
            for gradient in self._above.gradients(through) if self._above is not None else ():
                truth = self._learn_from(gradient)
        finally:
            self._is_learning = False
        return truth

    def _learn_from(self, gradient: Gradient) -> list[tf.Tensor] | None:
        """Learn from one gradient, and pass it on to the module below if that waits for it."""
        if self.log is not None:
            # After a step's prediction, it teaches only the next step, where a replay takes it.
            step = self._forward_count + int(self._has_predicted)
            self.log.gradients.append((step, gradient))
        part = self._pending.popleft()
        if gradient.report.size:
            self.report = tf.constant(gradient.report)
        truth = None
        if gradient.tensors is not None:
            truth = [tf.convert_to_tensor(array) for array in gradient.tensors]
        if truth is not None and self.gradient is not None:
            with self._recorded("learn", self._forward_count):
                self.gradient.learn(part.synthesizer_inputs, truth)
        if part.tape is not None:
            mixed = part.predicted if truth is None else self._mixed(part.predicted, truth)
            self._send_back(part, _gradients(part, part.received, mixed))
        return truth

    def _mixed(self, predicted: list[tf.Tensor], truth: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return (1 - lambda) s + lambda g."""
        if self._lambda == 1.0:
            return truth
        return [
            s * tf.cast(1 - self._lambda, s.dtype) + g * tf.cast(self._lambda, g.dtype)
            for s, g in zip(predicted, truth, strict=True)
        ]

    def _learn_meanwhile(self) -> None:
        """Learn, and pass gradients on, while the module waits for another one."""
        if not self._is_learning:
            self._learn(-1)

    def _learn_inputs(self, through: int, last: int) -> None:
        """Let the synthesizer of inputs learn from the activations that have come."""
        if self.inputs is not None and self._below is not None:
            for tensors in self._take_activations(through, last):
                with self._recorded("learn", self._forward_count):
                    self.inputs.learn(self._unseen.popleft(), tensors)

    def _take_activations(self, through: int, last: int) -> list[list[tf.Tensor]]:
        """Return the activations that have come up to batch `last`; wait for `through`."""
        assert self._below is not None
        messages = self._below.activations(through, last, self._learn_meanwhile)
        if self.log is not None:
            self.log.activations += [(self._forward_count, message) for message in messages]
        if messages:
            self._penalty = messages[-1].penalty
        return [[tf.convert_to_tensor(a) for a in activation.tensors] for activation in messages]


def _values(variables: list[keras.Variable]) -> list[np.ndarray]:
    return [np.array(variable) for variable in variables]


def _gradients(part: _Pass, sources: list[Any], upstream: list[tf.Tensor] | None) -> list[Any]:
    """Return the gradients of `sources`, given those of the activations; None: of the loss."""
    assert part.tape is not None
    if upstream is not None:
        upstream = [*upstream, tf.constant(_OF_PENALTY)]
    gradients: list[Any] = part.tape.gradient(part.outputs, sources, output_gradients=upstream)
    return gradients
