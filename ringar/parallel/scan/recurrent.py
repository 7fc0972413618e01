"""SimpleRNN and GRU over a whole sequence: one op forward, one back, the scan among its ways.

The functions here work on what Keras' cells multiply out beforehand, the projected inputs, whose
gradient TensorFlow takes further. tf_ops/scan/recurrent.h has the formulas of both cells and of
their Jacobians; the way back goes from ``dL/dh_t`` of each step to the one before it, either by a
kernel that carries the gradients of the batch through the chain, or by the scan of
``tf_ops/scan/scan.cc`` over Jacobians that are made as they are needed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from ringar import computation
from ringar.parallel.scan.chain import Way


@dataclasses.dataclass(frozen=True)
class Cell:
    """A kind of cell.

    Attributes:
        name: of its computations.
        gates: how many times the units its projected inputs have.
        kept: how many times the units it keeps for the way back, beside the states.
        activation: the number of its activation, in ACTIVATIONS of ringar/keras/recurrent.py.
        recurrent_activation: that of its gates.
    """

    name: str
    gates: int
    kept: int
    activation: int
    recurrent_activation: int = 0


def simple_rnn(activation: int) -> Cell:
    """Keras' SimpleRNN."""
    return Cell("simple_rnn", 1, 0, activation)


def gru(activation: int, recurrent_activation: int) -> Cell:
    """Keras' GRU with ``reset_after=True``."""
    return Cell("gru", 3, 4, activation, recurrent_activation)


@dataclasses.dataclass(frozen=True)
class Sequence:
    """One call of a cell.

    Attributes:
        cell: what kind.
        projected: inputs times kernel plus bias, (batch, steps, gates * units).
        initial: the state before the first step, (batch, units).
        kernel: the recurrent kernel, (units, gates * units).
        bias: the recurrent bias, (gates * units,), or None.
        mask: (batch, steps) of bool; a step where it is False hands the state on. Or None.
    """

    cell: Cell
    projected: tf.Tensor
    initial: tf.Tensor
    kernel: tf.Tensor
    bias: tf.Tensor | None = None
    mask: tf.Tensor | None = None


def states(sequence: Sequence, way: Way) -> tf.Tensor:
    """The states after each step, (batch, steps, units)."""
    return _run(sequence, way, last_only=False)


def last_state(sequence: Sequence, way: Way) -> tf.Tensor:
    """The state after the last step, (batch, units); there must be one.

    Cheaper on the way back than the last of :func:`states`: nothing comes in at other steps.
    """
    return _run(sequence, way, last_only=True)


def jacobians(sequence: Sequence, written: list[tf.Tensor], threads: int) -> tf.Tensor:
    """``dh_t/dh_{t-1}``, (steps, batch, units, units).

    Args:
        sequence: the call.
        written: what :func:`forward` has returned for it.
        threads: how many to use.
    """
    batch, steps, units = written[0].shape
    (matrices,) = computation.compute(
        f"{sequence.cell.name}_jacobians",
        [sequence.initial, sequence.kernel, _mask(sequence), *written],
        [tf.TensorSpec([steps, batch, units, units], written[0].dtype)],
        **_options(sequence.cell, threads),
    )
    return matrices


def forward(sequence: Sequence, threads: int) -> list[tf.Tensor]:
    """The states, and what is kept for the way back; without a gradient."""
    cell, dtype = sequence.cell, sequence.projected.dtype
    batch, steps = sequence.projected.shape[:2]
    units = sequence.initial.shape[1]
    inputs = [sequence.projected, sequence.initial, sequence.kernel, _mask(sequence)]
    if cell.gates > 1:
        inputs.append(computation.absent(dtype) if sequence.bias is None else sequence.bias)
    outputs = [tf.TensorSpec([batch, steps, units], dtype)]
    if cell.kept:
        outputs.append(tf.TensorSpec([batch, steps, cell.kept * units], dtype))
    return computation.compute(cell.name, inputs, outputs, **_options(cell, threads))


def backward(
    sequence: Sequence,
    written: list[tf.Tensor],
    d_states: tf.Tensor | None,
    d_last: tf.Tensor | None,
    way: Way,
) -> list[tf.Tensor]:
    """Gradients of projected inputs, initial state, recurrent kernel and recurrent bias.

    Args:
        sequence: the call.
        written: what :func:`forward` has returned for it.
        d_states: gradients with respect to the states, (batch, steps, units), or None.
        d_last: one more with respect to the last state, (batch, units), or None.
        way: how.
    """
    cell, h = sequence.cell, written[0]
    batch, steps, units = h.shape
    gates = cell.gates * units
    given = [computation.absent(h.dtype) if d is None else d for d in (d_states, d_last)]
    return computation.compute(
        f"{cell.name}_gradient",
        [sequence.initial, sequence.kernel, _mask(sequence), *given, *written],
        [
            tf.TensorSpec([batch, steps, gates], h.dtype),
            tf.TensorSpec([batch, units], h.dtype),
            tf.TensorSpec([units, gates], h.dtype),
            tf.TensorSpec([gates if cell.gates > 1 else 0], h.dtype),
        ],
        levels=way.levels,
        **_options(cell, way.threads),
    )


def _run(sequence: Sequence, way: Way, *, last_only: bool) -> tf.Tensor:
    differentiable = [sequence.projected, sequence.initial, sequence.kernel]
    if sequence.bias is not None:
        differentiable.append(sequence.bias)

    def run(*tensors: tf.Tensor) -> Any:
        bias = tensors[3] if len(tensors) > 3 else None
        own = Sequence(sequence.cell, *tensors[:3], bias, sequence.mask)
        written = forward(own, way.threads)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            d_states, d_last = (None, upstream) if last_only else (upstream, None)
            return backward(own, written, d_states, d_last, way)[: len(tensors)]

        return (written[0][:, -1] if last_only else written[0]), gradient

    return tf.custom_gradient(run)(*differentiable)


def _mask(sequence: Sequence) -> tf.Tensor:
    if sequence.mask is None:
        return tf.zeros([0], tf.uint8)
    return tf.cast(sequence.mask, tf.uint8)


def _options(cell: Cell, threads: int) -> dict[str, int]:
    return {
        "activation": cell.activation,
        "recurrent_activation": cell.recurrent_activation,
        "threads": threads,
    }
