"""What a collective is made of, and how any of them runs, on arrays and tensors.

The file of a collective defines what is its own: the TensorFlow op, how many rows come out, and the
gradient. Here is what all have in common: the three ways to the engine. NumPy arrays go through the
library's C interface, which waits for the result. TensorFlow tensors go through an op, in eager
code as in a `tf.function`. Inside `tf.function(jit_compile=True)` they go through an XLA custom
call (`ringar.collectives.compiled`). All three carry the same line of text, the spec.

The gradient of a collective is made of other collectives. It asks for them by name, so that no file
of a collective needs another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from ringar.collectives import compiled
from ringar.collectives.call import Call, by_dtype
from ringar.job import native

Arguments = Callable[[Sequence[tf.Tensor], Any], Sequence[Any]]
"""`(tensors, rows per rank) -> inputs` of the TensorFlow op."""

NO_SPLITS = np.zeros(0, np.int64)
"""Rows per rank where nothing is said of them: dealt out evenly."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """Describe one collective; its op works on tensors of one dtype.

    Attributes:
        gradient: from the gradients of the outputs to those of the inputs.
        arguments: what its TensorFlow op takes. The op's first outputs are those of the tensors.
        rows: how many rows this rank gets if all ranks bring `rows`; None: as many.
        ranks_may_differ: in how many rows they bring. Then the exchange alone tells how many come
            out. Compiled code must know before, and takes the same number from all ranks.
        grouped: whether the op takes any number of tensors, or one.
    """

    gradient: Callable[[Backward], Sequence[tf.Tensor]]
    arguments: Arguments = lambda tensors, splits: [tensors]
    rows: Callable[[Call, int], int] | None = None
    ranks_may_differ: bool = False
    grouped: bool = True

    def output_shape(self, call: Call, shape: Sequence[int]) -> list[int]:
        """Return the shape of a result, where all ranks bring an array of `shape`."""
        if self.rows is None:
            return list(shape)
        # The engine refuses a scalar, on all ranks: it has to get that far.
        return [self.rows(call, shape[0] if len(shape) else 1), *shape[1:]]


@dataclasses.dataclass(frozen=True)
class Backward:
    """Hold the tensors from which the gradient of a collective is computed.

    Attributes:
        call: the collective.
        inputs: its tensors.
        outputs: its results. Ops may have further outputs, compiled calls have none.
        upstream: the gradients of the results.
    """

    call: Call
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]
    upstream: list[tf.Tensor]

    def run(
        self, collective: str, tensors: Sequence[tf.Tensor], splits: Any = NO_SPLITS, **changes: Any
    ) -> list[tf.Tensor]:
        """Run another collective of the same ranks, unscaled, with `changes` of its `Call`."""
        call = self.call.gradient(collective=collective, **changes)
        return list(run_tensors(call, list(tensors), splits)[: len(tensors)])


_COLLECTIVES: dict[str, Collective] = {}


def define(name: str, collective: Collective) -> None:
    """Make a collective known by its name, and its gradient to TensorFlow."""
    _COLLECTIVES[name] = collective

    @tf.RegisterGradient(f"Ringar{name.capitalize()}Async")
    @tf.RegisterGradient(f"Ringar{name.capitalize()}")
    def _registered(op: Any, *upstream: tf.Tensor | None) -> Any:
        spec = op.get_attr("spec")
        call = Call.parse(spec.decode() if isinstance(spec, bytes) else spec)
        count = op.get_attr("N") if collective.grouped else 1
        given = [
            tf.zeros_like(output) if up is None else tf.convert_to_tensor(up)
            for output, up in zip(op.outputs[:count], upstream, strict=False)
        ]
        inputs, outputs = list(op.inputs), list(op.outputs)
        grads = list(collective.gradient(Backward(call, inputs[:count], outputs, given)))
        return grads + [None] * (len(inputs) - count)


def run(call: Call, values: Sequence[Any]) -> list[Any]:
    """Run a collective on the arrays or tensors that `values_of` returns, in their places.

    Those of one dtype travel together, in the order in which the dtypes first appear.
    """
    run_group = run_arrays if is_numpy(values) else run_tensors
    results: list[Any] = [None] * len(values)
    for places in by_dtype(value.dtype for value in values):
        outputs = run_group(call, [values[i] for i in places])[: len(places)]
        for place, output in zip(places, outputs, strict=True):
            results[place] = output
    return results


def is_numpy(values: Sequence[Any]) -> bool:
    """Return whether all values are NumPy arrays or scalars, so that results are NumPy arrays."""
    return all(isinstance(value, (np.ndarray, np.generic)) for value in values)


def values_of(tensors: Iterable[Any], function: str) -> list[Any]:
    """Return a user's values as tensors, or as NumPy arrays if all of them are.

    Arrays are C-contiguous, in this machine's byte order, and scalars are without a dimension.

    Args:
        tensors: of a collective or a message.
        function: its name, for errors.

    Raises:
        TypeError: an array on a GPU, which TensorFlow would take apart, number by number.
    """
    tensors = list(tensors)
    if not is_numpy(tensors):
        # Most are tensors already: asking TensorFlow takes longer than looking.
        return [t if isinstance(t, tf.Tensor) else _tensor_of(t, function) for t in tensors]
    return [np.asarray(array, array.dtype.newbyteorder("="), order="C") for array in tensors]


def _tensor_of(value: Any, function: str) -> tf.Tensor:
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
    """Return the results' shapes for inputs of `shapes`; None where only the exchange tells."""
    collective = _COLLECTIVES[call.collective]
    if collective.ranks_may_differ:
        return None
    return [collective.output_shape(call, shape) for shape in shapes]


def run_arrays(call: Call, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Run a collective on NumPy arrays of one dtype and wait for its end."""
    dtype, shapes = arrays[0].dtype, output_shapes(call, [array.shape for array in arrays])
    outputs = None if shapes is None else [np.empty(shape, dtype) for shape in shapes]
    return native.run(call.spec(dtype.name), arrays, outputs)[0]


def run_tensors(
    call: Call, tensors: list[tf.Tensor], splits: Any = NO_SPLITS
) -> Sequence[tf.Tensor]:
    """Run a collective on tensors of one dtype; `splits`: rows per rank (not compiled).

    Returns:
        A result per tensor, followed by whatever else the op has for outputs (not compiled).
    """
    collective = _COLLECTIVES[call.collective]
    if compiled.is_compiling():
        assert splits is NO_SPLITS, f"compiled {call.collective} with {splits}"
        return _run_compiled(collective, call, tensors)
    wait = is_worth_waiting_for(tensors) and not _have_turns()
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
        wait: whether it holds its thread until it is done; if not, it draws a turn before.
        attributes: the op's, such as its `spec`.

    Returns:
        The op's outputs.
    """
    op = native.op(collective, wait=wait)
    if wait:
        return tf.nest.flatten(op(*arguments, **attributes))
    tf_ops.get_default_graph()._ringar_has_turns = True
    result = op(*arguments, native.ops().ringar_turn(), **attributes)
    outputs = [] if isinstance(result, tf.Operation) else tf.nest.flatten(result)
    _leave_order_to_the_engine(outputs[0].op if outputs else result)
    return outputs


def _have_turns() -> bool:
    """Return whether earlier collectives of the graph may be announced, but not issued.

    A collective that waits for them must not hold a thread, which they may need to come.
    """
    graph = None if tf.executing_eagerly() else tf_ops.get_default_graph()
    while graph is not None:
        if getattr(graph, "_ringar_has_turns", False):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _leave_order_to_the_engine(op: tf.Operation) -> None:
    """Let TensorFlow issue an op as soon as its inputs are there; its turn keeps the order.

    Otherwise each op that has an effect waits for the one before it in the program to end.
    """
    if manager := getattr(op.graph, "experimental_acd_manager", None):
        manager.run_independently(op)


def is_worth_waiting_for(tensors: Sequence[tf.Tensor]) -> bool:
    """Return whether an op is to hold its thread until it is done, or to be called back.

    In eager code the caller waits in any case. In a graph, a callback has TensorFlow schedule all
    that depends on the op anew, which takes longer than a collective of a few hundred kilobytes;
    during a long one the thread has better things to do, above all the rest of the backward pass.
    So has it while a short one is held back by a long one before it (`_have_turns`).
    """
    if tf.executing_eagerly():
        return True
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
    def differentiable(*inputs: tf.Tensor) -> Any:
        shapes = [compiled.static_shape(t, call) for t in inputs]
        results = [
            tf.TensorSpec(collective.output_shape(call, shape), tensor.dtype)
            for shape, tensor in zip(shapes, inputs, strict=True)
        ]
        outputs = compiled.run(call.spec(inputs[0].dtype.name, shapes), inputs, results)

        def backward(*upstream: tf.Tensor) -> Any:
            return list(collective.gradient(Backward(call, list(inputs), outputs, list(upstream))))

        return outputs, backward

    return list(differentiable(*tensors))
