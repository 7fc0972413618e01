"""The two ways of TensorFlow's tensors to the engine.

Tensors go through an op, in eager code as in a `tf.function`. Inside
`tf.function(jit_compile=True)` they go through an XLA custom call (`ringar.collectives.compiled`).

A gradient runs other collectives. It looks them up by name, so that their files do not import each
other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringar.collectives import call as calls
from ringar.collectives import compiled, one_rank, order
from ringar.collectives.call import Call
from ringar.collectives.collective import COLLECTIVES, NO_SPLITS, Collective, Splits
from ringar.job import native


@dataclasses.dataclass(frozen=True)
class Backward:
    """Hold the tensors for the gradient of a collective.

    Attributes:
        call: the collective.
        inputs: its tensors.
        outputs: its results. Ops may have more outputs than results; compiled calls do not.
        upstream: the gradients of the results.
    """

    call: Call
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]
    upstream: list[tf.Tensor]

    def run(
        self,
        collective: str,
        tensors: Sequence[tf.Tensor],
        splits: Splits = NO_SPLITS,
        **changes: str | float,
    ) -> list[tf.Tensor]:
        """Run another collective of the same ranks, unscaled, with `changes` of its `Call`."""
        call = self.call.gradient(collective=collective, **changes)
        if order.in_session_graph():
            # A session may run the gradients of one collective one by one.
            name = calls.number_in_graph(call.name, call.process_set)
            call = dataclasses.replace(call, name=name)
        return list(run_tensors(call, list(tensors), splits)[: len(tensors)])


def register_gradient(name: str, collective: Collective) -> None:
    """Register the gradient of a collective with TensorFlow."""

    @tf.RegisterGradient(f"Ringar{name.capitalize()}Async")
    @tf.RegisterGradient(f"Ringar{name.capitalize()}")
    def _registered(op: tf.Operation, *upstream: tf.Tensor | None) -> list[tf.Tensor | None]:
        spec = op.get_attr("spec")
        call = Call.parse(spec.decode() if isinstance(spec, bytes) else spec)
        count = op.get_attr("N") if collective.grouped else 1
        inputs, outputs = list(op.inputs), list(op.outputs)
        gradients = _upstream_of(outputs[:count], upstream)
        grads = list(collective.gradient(Backward(call, inputs[:count], outputs, gradients)))
        return grads + [None] * (len(inputs) - count)


def _upstream_of(
    outputs: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor | None]
) -> list[tf.Tensor]:
    """Return the gradients of outputs as tensors of the outputs' dtypes; None stands for zeros."""
    return [
        tf.zeros_like(output) if up is None else tf.cast(tf.convert_to_tensor(up), output.dtype)
        for output, up in zip(outputs, upstream, strict=False)
    ]


def run_tensors(
    call: Call, tensors: list[tf.Tensor], splits: Splits = NO_SPLITS
) -> Sequence[tf.Tensor]:
    """Run a collective on tensors of one dtype; `splits`: rows per rank (not compiled).

    Returns:
        A result per tensor, followed by the other outputs of the op (not compiled).
    """
    collective = COLLECTIVES[call.collective]
    order.check_session_graph(call)
    if native.absence() is not None:
        return _differentiable(collective, call, tensors, lambda x: one_rank.run(call, x, splits))
    if compiled.is_compiling():
        assert splits is NO_SPLITS, f"compiled {call.collective} with {splits}"
        return _run_compiled(collective, call, tensors)
    wait = should_block(tensors) and not order.has_tickets()
    arguments = collective.arguments(tensors, splits)
    spec = call.spec(tensors[0].dtype.name)
    outputs = issue(call.collective, *arguments, wait=wait, spec=spec)
    if collective.rows is not None and not tf.executing_eagerly():
        for tensor, output in zip(tensors, outputs, strict=False):
            if tensor.shape.rank:
                output.set_shape([None, *tensor.shape[1:]])
    return outputs


def issue(collective: str, *arguments: Any, wait: bool, **attributes: Any) -> list[tf.Tensor]:
    """Add the op of a collective or of a message to the graph, or run it in eager code.

    Args:
        collective: its name.
        arguments: the op's inputs.
        wait: whether the op blocks its thread until the end. An op that does not block draws a
            ticket first.
        attributes: the attributes of the op, such as its `spec`.

    Returns:
        The op's outputs.
    """
    op = native.op(collective, wait=wait)
    if wait:
        return tf.nest.flatten(order.in_order(lambda: op(*arguments, **attributes)))
    ticket = order.in_order(lambda: native.ops().ringar_ticket(spec=attributes["spec"]))
    result = op(*arguments, ticket, **attributes)
    outputs = [] if isinstance(result, tf.Operation) else tf.nest.flatten(result)
    order.follow_ticket(outputs[0].op if outputs else result, has_outputs=bool(outputs))
    return outputs


def should_block(tensors: Sequence[tf.Tensor]) -> bool:
    """Return whether an op should block its thread until its end, instead of a callback.

    In eager code the caller waits in any case, and in a graph of TensorFlow 1 tickets alone keep
    the order. In a `tf.function`, a callback makes TensorFlow schedule all dependent ops anew,
    which takes longer than a collective of a few hundred kilobytes. During a long collective the
    thread can run other ops, above all the rest of the backward pass. The same holds for a short
    collective behind a long one (`order.has_tickets`).
    """
    if tf.executing_eagerly():
        return True
    if not tf.inside_function():
        return False
    elements = [tensor.shape.num_elements() for tensor in tensors]
    if None in elements:
        return False
    limit: int = native.library().ringar_inline_bytes()
    return sum(elements) * tensors[0].dtype.size <= limit


def _run_compiled(
    collective: Collective, call: Call, tensors: list[tf.Tensor]
) -> Sequence[tf.Tensor]:
    dtype = tensors[0].dtype
    if dtype.is_floating and call.has_factors_nccl_lacks() and compiled.target_device() == "GPU":
        bare = dataclasses.replace(call, prescale=1.0, postscale=1.0)
        scaled = [tensor * tf.constant(call.prescale, dtype) for tensor in tensors]
        reduced = _run_compiled(collective, bare, scaled)
        return [tensor * tf.constant(call.postscale, dtype) for tensor in reduced]

    def forward(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        shapes = [compiled.static_shape(t, call) for t in inputs]
        results = [
            tf.TensorSpec(collective.output_shape(call, shape), tensor.dtype)
            for shape, tensor in zip(shapes, inputs, strict=True)
        ]
        return compiled.run(call.spec(inputs[0].dtype.name, shapes), inputs, results)

    return _differentiable(collective, call, tensors, forward)


def _differentiable(
    collective: Collective,
    call: Call,
    tensors: Sequence[tf.Tensor],
    forward: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Return `forward(tensors)` with the gradient of a collective, which is no op of its own."""

    @tf.custom_gradient
    def differentiable(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        outputs = forward(inputs)

        def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
            gradients = _upstream_of(outputs[: len(inputs)], upstream)
            return list(collective.gradient(Backward(call, list(inputs), outputs, gradients)))

        return outputs, backward

    return list(differentiable(*tensors))
