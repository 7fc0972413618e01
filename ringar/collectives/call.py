"""What a collective is to do, and the three ways to the engine that it can take.

NumPy arrays go through the library's C interface, which waits for the result. TensorFlow tensors go
through an op, in eager code as in a ``tf.function``. Inside ``tf.function(jit_compile=True)`` they
go through an XLA custom call (:mod:`ringar.collectives.compiled`). All three carry the same line of
text, the spec.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringar import errors, native, runtime
from ringar.collectives import compiled
from ringar.runtime import ProcessSet

# Those of tf_ops/engine/types.cc.
DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"),
    *("bool", "int16", "uint16", "uint32", "uint64", "complex64", "complex128"),
)


as_it_is = tf.autograph.experimental.do_not_convert
"""Keeps AutoGraph from rewriting a function that is called in a ``tf.function``."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A collective, apart from its arrays."""

    collective: str
    op: str = "sum"
    root: int = 0  # a rank of the process set
    process_set: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    name: str = ""

    def spec(self, dtype: str = "uint8", shapes: Sequence[Sequence[int]] = ()) -> str:
        """The line of text that tf_ops/engine/spec.h describes.

        Raises:
            UnsupportedError: a dtype that no collective takes, such as strings.
        """
        if dtype not in DTYPES:
            raise errors.UnsupportedError(
                f"rank {runtime.rank()} | {self.collective}: expected a dtype out of "
                f"{', '.join(DTYPES)}; received {dtype}. Cast it first; ringar.broadcast_object "
                "and ringar.allgather_object take anything that can be pickled."
            )
        text = (
            f"{self.collective} dtype={dtype} op={self.op} root={self.root} "
            f"set={self.process_set} prescale={self.prescale!r} postscale={self.postscale!r} "
        )
        if shapes:
            text += "shapes=" + ";".join(",".join(map(str, shape)) for shape in shapes) + " "
        return text + f"name={self.name}"

    @classmethod
    def parse(cls, spec: str) -> Call:
        """The inverse of :meth:`spec`."""
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
            name=name,
        )

    def gradient(self, **changes: Any) -> Call:
        """A call for the gradient of this one: the same ranks, another name, unscaled."""
        defaults = {"prescale": 1.0, "postscale": 1.0, "op": "sum", "root": 0}
        return dataclasses.replace(self, name=f"{self.name}/gradient", **{**defaults, **changes})


Gradient = Callable[[Call, Sequence[tf.Tensor], Sequence[tf.Tensor], Sequence[tf.Tensor]], Any]
"""``(call, inputs, outputs, output gradients) -> input gradients``."""


def begin(
    collective: str,
    process_set: ProcessSet | None,
    name: str | None,
    *,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> tuple[Call, ProcessSet]:
    """A call on a process set (None: all ranks), with a name that all ranks find alike.

    Without a name a call in a graph is numbered within that graph: ranks may trace at different
    times and different often, but they trace the same functions. Each process set has numbers of
    its own, since ranks may be in different ones.
    """
    runtime._config(f"ringar.{collective}()")
    ranks = process_set or runtime.global_process_set
    if ranks.process_set_id is None:
        raise ValueError(
            "process_set must have been added with ringar.add_process_set(). "
            f"Received: {process_set}"
        )
    if name is None:
        name = "" if tf.executing_eagerly() else _number_in_graph(collective, ranks.process_set_id)
    clean = " ".join(name.split())
    # Numbers of NumPy would not be written as numbers in the spec.
    call = Call(
        collective,
        root=int(root),
        process_set=ranks.process_set_id,
        prescale=float(prescale),
        postscale=float(postscale),
        name=clean,
    )
    return call, ranks


def _number_in_graph(collective: str, process_set_id: int) -> str:
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_ringar_calls"):
        graph._ringar_calls = collections.Counter()
    number: int = graph._ringar_calls[process_set_id]
    graph._ringar_calls[process_set_id] += 1
    return f"{collective}_{number}"


def is_numpy(values: Sequence[Any]) -> bool:
    """Whether all are NumPy arrays or scalars, which then are answered with NumPy arrays."""
    return all(isinstance(value, (np.ndarray, np.generic)) for value in values)


def as_arrays(values: Sequence[Any]) -> list[np.ndarray]:
    """C-contiguous arrays in this machine's byte order, scalars without a dimension."""
    return [np.asarray(value, value.dtype.newbyteorder("="), order="C") for value in values]


def rows_of(tensor: tf.Tensor) -> int:
    """A known first dimension; 1 for a scalar, which the engine then refuses on all ranks."""
    return int(tensor.shape[0]) if tensor.shape.rank else 1


def by_dtype(values: Sequence[Any], run: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
    """Calls ``run`` once per dtype, in the order of first appearance; results keep their places."""
    groups: dict[Any, list[int]] = {}
    for i, value in enumerate(values):
        groups.setdefault(value.dtype, []).append(i)
    results: list[Any] = [None] * len(values)
    for places in groups.values():
        for place, result in zip(places, run([values[i] for i in places]), strict=True):
            results[place] = result
    return results


def run_numpy(call: Call, arrays: list[np.ndarray], **options: Any) -> Any:
    """See :func:`ringar.native.run`."""
    return native.run(call.spec(arrays[0].dtype.name if arrays else "uint8"), arrays, **options)


def run_tensors(
    call: Call,
    tensors: list[tf.Tensor],
    op: Callable[[str], Sequence[tf.Tensor]],
    results: Callable[[], Sequence[tf.TensorSpec]],
    gradient: Gradient,
) -> Sequence[tf.Tensor]:
    """Runs a collective on tensors of one dtype.

    Args:
        call: what to do.
        tensors: the inputs.
        op: given the spec, adds the TensorFlow op, whose gradient is registered.
        results: shapes and dtypes of the outputs, for compiled code.
        gradient: for compiled code, where ops have no registered gradients.
    """
    if not compiled.is_compiling():
        return op(call.spec(tensors[0].dtype.name))

    @tf.custom_gradient
    def differentiable(*inputs: tf.Tensor) -> Any:
        shapes = [compiled.static_shape(t, call.collective) for t in inputs]
        outputs = compiled.call(call.spec(inputs[0].dtype.name, shapes), inputs, results())

        def backward(*upstream: tf.Tensor) -> Any:
            return list(gradient(call, inputs, outputs, upstream))

        return outputs, backward

    return list(differentiable(*tensors))


def register_gradient(op_type: str, inputs: int | None, gradient: Gradient) -> None:
    """Registers ``gradient`` for a TensorFlow op whose first ``inputs`` inputs are the arrays.

    ``None`` means as many inputs as the op's attribute N says; other inputs get no gradient.
    """

    @tf.RegisterGradient(op_type)
    def _registered(op: Any, *upstream: tf.Tensor | None) -> Any:
        count = op.get_attr("N") if inputs is None else inputs
        given = [
            tf.zeros_like(output) if up is None else tf.convert_to_tensor(up)
            for output, up in zip(op.outputs[:count], upstream, strict=False)
        ]
        spec = op.get_attr("spec")
        call = Call.parse(spec.decode() if isinstance(spec, bytes) else spec)
        grads = list(gradient(call, list(op.inputs[:count]), list(op.outputs), given))
        return grads + [None] * (len(op.inputs) - count)
