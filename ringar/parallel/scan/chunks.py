"""SimpleRNN, GRU and LSTM in chunks of steps, one call after the other.

`pack` brings the kernels into the order in which the products read them, once for all chunks;
`recurrent.forward` takes the result. `backward` adds the gradients of the weights to sums that go
from chunk to chunk, and `weight_gradients` returns them. tf_ops/kernels/recurrent_chunks.cc has the
ops.
"""

from __future__ import annotations

import tensorflow as tf

from ringar.parallel.scan import computation, recurrent
from ringar.parallel.scan.chain import Options
from ringar.parallel.scan.recurrent import Sequence


def pack(sequence: Sequence, back: bool) -> tf.Tensor:
    """Return both kernels in the order in which `forward` or, if `back`, `backward` reads them.

    The tensor depends on the processor: no other process may get it.
    """
    (packed,) = computation.compute(
        f"{sequence.cell.name}_pack",
        [sequence.kernel, sequence.recurrent_kernel],
        [tf.TensorSpec([None], sequence.inputs.dtype)],
        back=back,
    )
    return packed


def backward(
    sequence: Sequence,
    saved: list[tf.Tensor],
    d_states: tf.Tensor | None,
    d_last: tf.Tensor | None,
    packed: tf.Tensor,
    sums: tf.Tensor | None,
    options: Options,
    with_inputs: bool = True,
) -> tuple[tf.Tensor | None, tf.Tensor, tf.Tensor]:
    """Return the gradients of a chunk's inputs and initial state, and the sums with its own.

    Args:
        sequence: the call, of the chunk's steps.
        saved: as of `recurrent.backward`.
        d_states: as of `recurrent.backward`.
        d_last: as of `recurrent.backward`.
        packed: the result of `pack`, for the way back.
        sums: the sums of the previous call, whose chunk has the later steps; None for the first.
            Nothing else may read them: they are overwritten where TensorFlow allows it.
        options: the options of the scan.
        with_inputs: as of `recurrent.backward`; if false, the first result is None.
    """
    h = saved[0]
    rest = [computation.or_empty(d, h.dtype) for d in (d_states, d_last)]
    before = tf.zeros([0, 0], h.dtype) if sums is None else sums
    d_inputs, d_initial, added = computation.compute(
        f"{sequence.cell.name}_chunk_gradient",
        [
            *recurrent.fixed_inputs(sequence),
            *recurrent.projection_inputs(sequence),
            *rest,
            packed,
            before,
            *saved,
        ],
        [
            recurrent.d_inputs_spec(sequence, with_inputs),
            tf.TensorSpec(sequence.initial.shape, h.dtype),
            tf.TensorSpec([None, None], h.dtype),
        ],
        levels=options.levels,
        without_inputs=not with_inputs,
        **recurrent.cell_options(sequence.cell, options.threads),
    )
    return d_inputs if with_inputs else None, d_initial, added


def weight_gradients(sequence: Sequence, sums: tf.Tensor) -> list[tf.Tensor]:
    """Return the gradients of a whole sequence's weights, in the order of `Sequence.tensors`.

    Args:
        sequence: the call of any chunk.
        sums: the sums that `backward` has returned for the last chunk, with the first steps.
    """
    tensors = sequence.tensors()
    biases = [computation.or_empty(b, sums.dtype) for b in (sequence.bias, sequence.recurrent_bias)]
    results = computation.compute(
        f"{sequence.cell.name}_weights",
        [sums, sequence.kernel, sequence.recurrent_kernel, biases[0]],
        [tf.TensorSpec(tensor.shape, sums.dtype) for tensor in (*tensors[2:4], *biases)],
    )
    return results[: len(tensors) - 2]
