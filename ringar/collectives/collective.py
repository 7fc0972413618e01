"""The description of a collective, and the three ways in which all collectives run.

The file of a collective defines its TensorFlow op, the number of rows of its result, and its
gradient. This file has the three ways to the engine. NumPy arrays go through the library's C
interface, which waits for the result. TensorFlow tensors go through an op, in eager code as in a
`tf.function`. Inside `tf.function(jit_compile=True)` they go through an XLA custom call
(`ringar.collectives.compiled`). All three carry the same line of text, the spec.

A gradient runs other collectives. It looks them up by name, so that their files do not import each
other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from ringar.collectives import call as calls
from ringar.collectives import compiled, order
from ringar.collectives.call import Call, by_dtype
from ringar.collectives.dtypes import Array
from ringar.job import native

Splits: TypeAlias = "np.ndarray | tf.Tensor"
"""The number of rows per rank, int64; none for even shares."""

Arguments = Callable[[Sequence[tf.Tensor], Splits], Sequence[Any]]
"""`(tensors, rows per rank) -> inputs` of the TensorFlow op."""

NO_SPLITS = np.zeros(0, np.int64)
"""The rows per rank of a call without splits: even shares."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """Describe one collective; its op works on tensors of one dtype.

    Attributes:
        gradient: computes the gradients of the inputs from those of the outputs.
        arguments: returns the inputs of the TensorFlow op. Its first outputs are the results.
        rows: returns this rank's number of result rows if all ranks pass `rows`; None: the same.
        ranks_may_differ: whether ranks may pass different numbers of rows. Then only the exchange
            tells the shape of the results. Compiled code must know it before, and needs equal
            numbers.
        grouped: whether the op takes any number of tensors, or one.
    """

    gradient: Callable[[Backward], Sequence[tf.Tensor]]
    arguments: Arguments = lambda tensors, splits: [tensors]
    rows: Callable[[Call, int], int] | None = None
    ranks_may_differ: bool = False
    grouped: bool = True

    def output_shape(self, call: Call, shape: Sequence[int]) -> list[int]:
        """Return the shape of a result if all ranks pass an array of `shape`."""
        if self.rows is None:
            return list(shape)
        # A scalar must reach the engine, which refuses it on all ranks.
        return [self.rows(call, shape[0] if len(shape) else 1), *shape[1:]]


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


_COLLECTIVES: dict[str, Collective] = {}


def define(name: str, collective: Collective) -> None:
    """Register a collective under its name, and its gradient with TensorFlow."""
    _COLLECTIVES[name] = collective

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


def run(call: Call, values: Sequence[Any]) -> list[Any]:
    """Run a collective on the result of `values_of`; return the results in the same order.

    Tensors of one dtype travel together, in the order in which the dtypes first appear.
    """
    run_group = run_arrays if is_numpy(values) else run_tensors
    results: list[Any] = [None] * len(values)
    for places in by_dtype(value.dtype for value in values):
        outputs = run_group(call, [values[i] for i in places])[: len(places)]
        for place, output in zip(places, outputs, strict=True):
            results[place] = output
    return results


def is_numpy(values: Sequence[Array]) -> bool:
    """Return whether all values, and so the results, are NumPy arrays or scalars."""
    return all(isinstance(value, (np.ndarray, np.generic)) for value in values)


def values_of(tensors: Iterable[Array], function: str) -> list[Any]:
    """Return a user's values as tensors, or as NumPy arrays if all of them are NumPy arrays.

    Arrays are C-contiguous and in this machine's byte order; scalars have no dimension.

    Args:
        tensors: the user's values.
        function: the name of the collective, for errors.

    Raises:
        TypeError: an array is on a GPU; TensorFlow would convert it number by number. Or it is a
            masked array, whose mask no collective knows.
    """
    tensors = list(tensors)
    if any(isinstance(tensor, np.ma.MaskedArray) for tensor in tensors):
        raise TypeError(
            f"ringar.{function} expected arrays without a mask; received a masked array. Pass "
            "array.filled(value), and np.ma.getmaskarray(array) by a second call where the ranks "
            "need the mask."
        )
    if not is_numpy(tensors):
        # Most values are tensors already, and isinstance is faster than convert_to_tensor.
        return [t if isinstance(t, tf.Tensor) else _tensor_of(t, function) for t in tensors]
    return [np.asarray(array, array.dtype.newbyteorder("="), order="C") for array in tensors]


def _tensor_of(value: Array, function: str) -> tf.Tensor:
    if hasattr(value, "__cuda_array_interface__"):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        remedy = (
            f"ringar.cupy.{function} takes it"
            if function in _COLLECTIVES
            else "copy it to the host, for example with cupy.asnumpy"
        )
        raise TypeError(
            f"ringar.{function} expected TensorFlow tensors or NumPy arrays; received a {kind}, "
            f"which is on a GPU: {remedy}."
        )
    return tf.convert_to_tensor(value)


def output_shapes(call: Call, shapes: Iterable[Sequence[int]]) -> list[list[int]] | None:
    """Return the results' shapes for inputs of `shapes`; None if only the exchange tells them."""
    collective = _COLLECTIVES[call.collective]
    if collective.ranks_may_differ:
        return None
    return [collective.output_shape(call, shape) for shape in shapes]


def run_arrays(call: Call, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Run a collective on NumPy arrays of one dtype and wait for its end."""
    dtype, shapes = arrays[0].dtype, output_shapes(call, [array.shape for array in arrays])
    empty = native.empty if call.collective == "allreduce" else np.empty
    outputs = None if shapes is None else [empty(shape, dtype) for shape in shapes]
    return native.run(call.spec(dtype.name), arrays, outputs)[0]


def run_tensors(
    call: Call, tensors: list[tf.Tensor], splits: Splits = NO_SPLITS
) -> Sequence[tf.Tensor]:
    """Run a collective on tensors of one dtype; `splits`: rows per rank (not compiled).

    Returns:
        A result per tensor, followed by the other outputs of the op (not compiled).
    """
    collective = _COLLECTIVES[call.collective]
    order.check_session_graph(call)
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

    @tf.custom_gradient
    def differentiable(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        shapes = [compiled.static_shape(t, call) for t in inputs]
        results = [
            tf.TensorSpec(collective.output_shape(call, shape), tensor.dtype)
            for shape, tensor in zip(shapes, inputs, strict=True)
        ]
        outputs = compiled.run(call.spec(inputs[0].dtype.name, shapes), inputs, results)

        def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
            gradients = _upstream_of(outputs, upstream)
            return list(collective.gradient(Backward(call, list(inputs), outputs, gradients)))

        return outputs, backward

    return list(differentiable(*tensors))
