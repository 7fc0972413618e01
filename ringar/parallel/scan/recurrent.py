"""SimpleRNN, GRU and LSTM over a whole sequence: one op forward and one backward.

The op multiplies the inputs with the kernel, too, a few steps at a time, so that nothing larger
than the states is written. tf_ops/scan/recurrent.h has the formulas of the cells. The backward op
computes `dL/dh_t` of each step from that of the next, either by a serial kernel for the whole
batch, or, of a SimpleRNN and a GRU, by the scan of `tf_ops/scan/scan.cc` over Jacobians that are
made as they are needed.

The state of an LSTM has two vectors, h and c, in one row. Its states of all steps are those of h.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from ringar.parallel.scan import computation
from ringar.parallel.scan.chain import Differentiable, Options


@dataclasses.dataclass(frozen=True)
class Cell:
    """Describe a kind of cell.

    Attributes:
        name: the name of its computations.
        gates: the number of columns of its kernels, in multiples of the units.
        saved_units: the values that the forward pass saves for each step, beside the state, in
            multiples of the units.
        activation: the index of its activation in ACTIVATIONS of ringar/parallel/scan/layers.py.
        recurrent_activation: the index of the activation of its gates.
        vectors: the vectors of a state, of `units` numbers each: 2 for an LSTM.
    """

    name: str
    gates: int
    saved_units: int
    activation: int
    recurrent_activation: int = 0
    vectors: int = 1


def simple_rnn(activation: int) -> Cell:
    """Describe the cell of Keras' SimpleRNN."""
    return Cell("simple_rnn", 1, 0, activation)


def gru(activation: int, recurrent_activation: int) -> Cell:
    """Describe the cell of Keras' GRU with `reset_after=True`."""
    return Cell("gru", 3, 4, activation, recurrent_activation)


def lstm(activation: int, recurrent_activation: int) -> Cell:
    """Describe the cell of Keras' LSTM."""
    return Cell("lstm", 4, 5, activation, recurrent_activation, vectors=2)


@dataclasses.dataclass(frozen=True)
class Sequence:
    """Hold the arguments of one call of a cell.

    Attributes:
        cell: the kind of cell.
        inputs: (batch, steps, features).
        initial: the state before the first step, (batch, vectors * units).
        kernel: (features, gates * units).
        recurrent_kernel: (units, gates * units).
        bias: (gates * units,), or None.
        recurrent_bias: (gates * units,), or None; a GRU has both or none.
        mask: (batch, steps) of bool, or None; a step where it is False leaves the state unchanged.
    """

    cell: Cell
    inputs: tf.Tensor
    initial: tf.Tensor
    kernel: tf.Tensor
    recurrent_kernel: tf.Tensor
    bias: tf.Tensor | None = None
    recurrent_bias: tf.Tensor | None = None
    mask: tf.Tensor | None = None

    def given(self) -> list[tf.Tensor]:
        """Return the tensors that have a gradient, in the order of the fields."""
        fields = (self.inputs, self.initial, self.kernel, self.recurrent_kernel)
        return [*fields, *[b for b in (self.bias, self.recurrent_bias) if b is not None]]

    def of(self, *given: tf.Tensor) -> Sequence:
        """Return the same call with other tensors, in the order of `given`."""
        bias, recurrent_bias = [*given[4:], None, None][:2]
        return dataclasses.replace(
            self,
            inputs=given[0],
            initial=given[1],
            kernel=given[2],
            recurrent_kernel=given[3],
            bias=bias,
            recurrent_bias=recurrent_bias,
        )


def states(sequence: Sequence, options: Options) -> tuple[tf.Tensor, tf.Tensor]:
    """Return h after each step, (batch, steps, units), and what `last_state` returns."""

    def run(*given: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., list[tf.Tensor]]]:
        own = sequence.of(*given)
        saved = forward(own, options.threads)

        def gradient(d_states: tf.Tensor, *d_rest: tf.Tensor) -> list[tf.Tensor]:
            d_last = None
            if d_rest:  # the upstream gradient of the last h is in `d_states`
                d_last = tf.concat([tf.zeros_like(d_states[:, -1]), *d_rest], axis=1)
            return backward(own, saved, d_states, d_last, options)

        rest = final_state(sequence.cell, saved)[:, saved[0].shape[2] :]
        return (saved[0], rest) if sequence.cell.vectors > 1 else (saved[0],), gradient

    h, *rest = tf.custom_gradient(run)(*sequence.given())
    return h, tf.concat([h[:, -1], *rest], axis=1)


def last_state(sequence: Sequence, options: Options) -> tf.Tensor:
    """Return the state after the last step, (batch, vectors * units); there must be one.

    Its backward pass is cheaper than that of `states`: other steps have no upstream gradients.
    """

    def run(*given: tf.Tensor) -> Differentiable:
        own = sequence.of(*given)
        saved = forward(own, options.threads)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            return backward(own, saved, None, upstream, options)

        return final_state(own.cell, saved), gradient

    return tf.custom_gradient(run)(*sequence.given())


def forward(sequence: Sequence, threads: int) -> list[tf.Tensor]:
    """Return the states and the saved values for `backward`; not differentiable."""
    cell, dtype = sequence.cell, sequence.inputs.dtype
    batch, steps = sequence.inputs.shape[:2]
    units = sequence.recurrent_kernel.shape[0]
    outputs = [tf.TensorSpec([batch, steps, units], dtype)]
    if cell.saved_units:
        outputs.append(tf.TensorSpec([batch, steps, cell.saved_units * units], dtype))
    inputs = [*_fixed(sequence), *_projection(sequence), _or_absent(sequence.recurrent_bias, dtype)]
    return computation.compute(cell.name, inputs, outputs, **_cell_options(cell, threads))


def final_state(cell: Cell, saved: list[tf.Tensor]) -> tf.Tensor:
    """Return the state after the last step, (batch, vectors * units), given `forward`'s result."""
    h, *kept = saved
    if cell.vectors == 1:
        return h[:, -1]
    return tf.concat([h[:, -1], kept[0][:, -1, -h.shape[2] :]], axis=1)


def backward(
    sequence: Sequence,
    saved: list[tf.Tensor],
    d_states: tf.Tensor | None,
    d_last: tf.Tensor | None,
    options: Options,
) -> list[tf.Tensor]:
    """Return the gradients of the tensors that `Sequence.given` lists.

    Args:
        sequence: the call.
        saved: the result of `forward`.
        d_states: gradients with respect to the states, (batch, steps, units), or None.
        d_last: an additional gradient with respect to the last state, of its shape, or None.
        options: the options of the scan.
    """
    cell, h = sequence.cell, saved[0]
    outside = [_or_absent(d, h.dtype) for d in (d_states, d_last)]
    given = sequence.given()
    biases = [_or_absent(b, h.dtype) for b in (sequence.bias, sequence.recurrent_bias)]
    results = computation.compute(
        f"{cell.name}_gradient",
        [*_fixed(sequence), *_projection(sequence), *outside, *saved],
        [tf.TensorSpec(tensor.shape, h.dtype) for tensor in (*given[:4], *biases)],
        levels=options.levels,
        **_cell_options(cell, options.threads),
    )
    return results[: len(given)]


def jacobians(sequence: Sequence, saved: list[tf.Tensor], threads: int) -> tf.Tensor:
    """Return `dh_t/dh_{t-1}`, (steps, batch, units, units), of a SimpleRNN or GRU.

    Args:
        sequence: the call.
        saved: the result of `forward`.
        threads: the number of threads.
    """
    batch, steps, units = saved[0].shape
    (matrices,) = computation.compute(
        f"{sequence.cell.name}_jacobians",
        [*_fixed(sequence), *saved],
        [tf.TensorSpec([steps, batch, units, units], saved[0].dtype)],
        **_cell_options(sequence.cell, threads),
    )
    return matrices


# The order of the computations' inputs: tf_ops/kernels/recurrent.cc.


def _fixed(sequence: Sequence) -> list[tf.Tensor]:
    mask = tf.zeros([0], tf.uint8) if sequence.mask is None else tf.cast(sequence.mask, tf.uint8)
    return [sequence.initial, sequence.recurrent_kernel, mask]


def _projection(sequence: Sequence) -> list[tf.Tensor]:
    bias = _or_absent(sequence.bias, sequence.inputs.dtype)
    return [sequence.inputs, sequence.kernel, bias]


def _or_absent(tensor: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
    return computation.absent(dtype) if tensor is None else tensor


def _cell_options(cell: Cell, threads: int) -> dict[str, int]:
    return {
        "activation": cell.activation,
        "recurrent_activation": cell.recurrent_activation,
        "threads": threads,
    }
