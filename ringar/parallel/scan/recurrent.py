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
from tensorflow.python.eager import record as tape_record

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

    def tensors(self) -> list[tf.Tensor]:
        """Return the tensors that have a gradient, in the order of the fields."""
        fields = (self.inputs, self.initial, self.kernel, self.recurrent_kernel)
        return [*fields, *[b for b in (self.bias, self.recurrent_bias) if b is not None]]

    def of(self, *tensors: tf.Tensor) -> Sequence:
        """Return the same call with other tensors, in the order of `Sequence.tensors`."""
        bias, recurrent_bias = [*tensors[4:], None, None][:2]
        return dataclasses.replace(
            self,
            inputs=tensors[0],
            initial=tensors[1],
            kernel=tensors[2],
            recurrent_kernel=tensors[3],
            bias=bias,
            recurrent_bias=recurrent_bias,
        )


def states(sequence: Sequence, options: Options) -> tuple[tf.Tensor, tf.Tensor]:
    """Return h after each step, (batch, steps, units), and the result of `last_state`."""
    with_inputs = needs_input_gradient(sequence)

    def run(
        *tensors: tf.Tensor,
    ) -> tuple[tuple[tf.Tensor, ...], Callable[..., list[tf.Tensor | None]]]:
        sequence_here = sequence.of(*tensors)
        saved = forward(sequence_here, options.threads)

        def gradient(d_states: tf.Tensor, *d_rest: tf.Tensor) -> list[tf.Tensor | None]:
            d_last = None
            if d_rest:  # the upstream gradient of the last h is in `d_states`
                d_last = tf.concat([tf.zeros_like(d_states[:, -1]), *d_rest], axis=1)
            return backward(sequence_here, saved, d_states, d_last, options, with_inputs)

        if sequence_here.cell.vectors == 1:
            return (saved[0],), gradient
        return (saved[0], final_state(sequence_here.cell, saved)[:, saved[0].shape[2] :]), gradient

    h, *rest = tf.custom_gradient(run)(*sequence.tensors())
    return h, tf.concat([h[:, -1], *rest], axis=1)


def last_state(sequence: Sequence, options: Options) -> tf.Tensor:
    """Return the state after the last step, (batch, vectors * units); there must be one.

    Its backward pass is cheaper than that of `states`: other steps have no upstream gradients.
    """
    with_inputs = needs_input_gradient(sequence)

    def run(*tensors: tf.Tensor) -> Differentiable:
        sequence_here = sequence.of(*tensors)
        saved = forward(sequence_here, options.threads)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor | None]:
            return backward(sequence_here, saved, None, upstream, options, with_inputs)

        return final_state(sequence_here.cell, saved), gradient

    return tf.custom_gradient(run)(*sequence.tensors())


def needs_input_gradient(sequence: Sequence) -> bool:
    """Return whether a tape may ask for the gradient of the inputs.

    No tape does if one watches the weights and not the inputs, as in the first layer of a model.
    `backward` may then leave out a product, a sixth of the arithmetic of a training step where
    there are as many features as units.
    """
    return is_watched(sequence.inputs) or not is_watched(sequence.recurrent_kernel)


def is_watched(tensor: tf.Tensor) -> bool:
    """Return whether a current tape may ask for the gradient of a tensor."""
    return bool(tape_record.should_record_backprop([tensor]))


def forward(sequence: Sequence, threads: int, packed: tf.Tensor | None = None) -> list[tf.Tensor]:
    """Return the states and the saved values for `backward`; not differentiable.

    Args:
        sequence: the call.
        threads: the number of threads.
        packed: the result of `pack`; None to pack the kernels for this call.
    """
    cell, dtype = sequence.cell, sequence.inputs.dtype
    batch, steps = sequence.inputs.shape[:2]
    units = sequence.recurrent_kernel.shape[0]
    outputs = [tf.TensorSpec([batch, steps, units], dtype)]
    if cell.saved_units:
        outputs.append(tf.TensorSpec([batch, steps, cell.saved_units * units], dtype))
    rest = [computation.or_empty(tensor, dtype) for tensor in (sequence.recurrent_bias, packed)]
    inputs = [*fixed_inputs(sequence), *projection_inputs(sequence), *rest]
    return computation.compute(cell.name, inputs, outputs, **cell_options(cell, threads))


def final_state(cell: Cell, saved: list[tf.Tensor]) -> tf.Tensor:
    """Return the state after the last step, (batch, vectors * units), given `forward`'s result."""
    h, *cells = saved
    if cell.vectors == 1:
        return h[:, -1]
    return tf.concat([h[:, -1], cells[0][:, -1, -h.shape[2] :]], axis=1)


def backward(
    sequence: Sequence,
    saved: list[tf.Tensor],
    d_states: tf.Tensor | None,
    d_last: tf.Tensor | None,
    options: Options,
    with_inputs: bool = True,
) -> list[tf.Tensor | None]:
    """Return the gradients of `Sequence.tensors`.

    Args:
        sequence: the call.
        saved: the result of `forward`.
        d_states: gradients with respect to the states, (batch, steps, units), or None.
        d_last: an additional gradient with respect to the last state, of its shape, or None.
        options: the options of the scan.
        with_inputs: whether the gradient of the inputs is expected to be used. Otherwise it is
            None in eager code. A function then has a second backward pass for it, which runs only
            if its result is used after all.
    """
    tensors, dtype = sequence.tensors(), saved[0].dtype
    biases = [computation.or_empty(b, dtype) for b in (sequence.bias, sequence.recurrent_bias)]
    rest = [tf.TensorSpec(tensor.shape, dtype) for tensor in (*tensors[1:4], *biases)]
    upstream = [computation.or_empty(d, dtype) for d in (d_states, d_last)]

    def run(with_inputs: bool) -> list[tf.Tensor]:
        return computation.compute(
            f"{sequence.cell.name}_gradient",
            [*fixed_inputs(sequence), *projection_inputs(sequence), *upstream, *saved],
            [d_inputs_spec(sequence, with_inputs), *rest],
            levels=options.levels,
            without_inputs=not with_inputs,
            **cell_options(sequence.cell, options.threads),
        )

    results: list[tf.Tensor | None] = [*run(with_inputs)]
    if not with_inputs:
        results[0] = None if tf.executing_eagerly() else run(True)[0]
    return results[: len(tensors)]


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
        [*fixed_inputs(sequence), *saved],
        [tf.TensorSpec([steps, batch, units, units], saved[0].dtype)],
        **cell_options(sequence.cell, threads),
    )
    return matrices


# The order of the computations' inputs: tf_ops/kernels/recurrent.cc.


def fixed_inputs(sequence: Sequence) -> list[tf.Tensor]:
    """Return the inputs that all computations of a cell begin with."""
    mask = tf.zeros([0], tf.uint8) if sequence.mask is None else tf.cast(sequence.mask, tf.uint8)
    return [sequence.initial, sequence.recurrent_kernel, mask]


def projection_inputs(sequence: Sequence) -> list[tf.Tensor]:
    """Return the inputs of the projections that a cell reads at each step."""
    bias = computation.or_empty(sequence.bias, sequence.inputs.dtype)
    return [sequence.inputs, sequence.kernel, bias]


def d_inputs_spec(sequence: Sequence, with_inputs: bool) -> tf.TensorSpec:
    """Return the spec of the gradient of the inputs, empty if it is left out."""
    shape = sequence.inputs.shape if with_inputs else [0]
    return tf.TensorSpec(shape, sequence.inputs.dtype)


def cell_options(cell: Cell, threads: int) -> dict[str, int]:
    """Return the options of a computation of a cell."""
    return {
        "activation": cell.activation,
        "recurrent_activation": cell.recurrent_activation,
        "threads": threads,
    }
