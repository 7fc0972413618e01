"""Gradients that a `train_step` adds up in variables of its own before the optimizer gets them.

A rank's gradient counts with its share of the rows of the batch in which it is reduced. A sum of
gradients, or a moving average, has parts of several batches. One share is right for all of them
only if ranks have batches of the same sizes, or each rank has batches of one size. Steps whose
gradients come from variables are found while they are traced. They note the rows of their batches,
which ranks compare at the end of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives.call import Call
from ringar.errors import MismatchError

#: The ops between a variable and the gradient that is made of it.
_ELEMENTWISE = {"AddN", "AddV2", "Cast", "Identity", "Mul", "Neg", "RealDiv", "Reshape", "Sub"}

Rows = tuple[int, int, int, int]
"""The number of batches of an epoch, a digest of their rows, the smallest and the largest one."""

_NO_ROWS: Rows = (0, 0, 2**62, 0)


def come_from_variables(gradients: Sequence[Any], variables: Sequence[Any] | None) -> bool:
    """Return whether a gradient is made of variables alone, as far as the graph tells.

    Args:
        gradients: tensors, variables, `tf.IndexedSlices` or None.
        variables: those that are trained, whose values alone are no gradient.
    """
    # Not by `value`, which is a collective where the weight is sharded.
    trained = [getattr(getattr(v, "_value", v), "handle", None) for v in variables or ()]
    return any(_is_made_of_variables(gradient, trained) for gradient in gradients)


def _is_made_of_variables(gradient: Any, trained: Sequence[Any]) -> bool:
    if isinstance(gradient, tf.Variable | keras.Variable):
        return True
    reads = [*_reads(gradient)]
    return None not in reads and any(all(read is not v for v in trained) for read in reads)


def _reads(tensor: Any, depth: int = 10) -> Iterator[Any]:
    """Yield handles of the variables that elementwise ops combine to a tensor; None: others."""
    tensor = _outside(tensor)
    op: Any = getattr(tensor, "op", None)
    kind = op.type if op is not None and depth else ""
    if kind == "ReadVariableOp":
        yield _outside(op.inputs[0])
    elif kind in _ELEMENTWISE:
        for part in op.inputs:
            yield from _reads(part, depth - 1)
    elif kind != "Const":
        yield None


def _outside(tensor: Any) -> Any:
    """Return the tensor that functions around this one have captured as `tensor`."""
    while getattr(getattr(tensor, "op", None), "type", "") == "Placeholder":
        captures = getattr(tensor.graph, "captures", ())
        outer = next((outer for outer, inner in captures if inner is tensor), None)
        if outer is None:
            break
        tensor = outer
    return tensor


class Batches:
    """Note the rows of the batches of an epoch, in the graph of a step."""

    def __init__(self) -> None:
        with tf.init_scope():
            self._tally = tf.Variable(tf.constant(_NO_ROWS, tf.int64), trainable=False)

    def begin(self) -> None:
        """Begin an epoch."""
        self._tally.assign(tf.constant(_NO_ROWS, tf.int64))

    def note(self, rows: Any) -> None:
        """Note the rows of a batch, a number or a scalar."""
        rows = tf.cast(rows, tf.int64)
        count, digest, least, most = tf.unstack(self._tally.read_value())
        least, most = tf.minimum(least, rows), tf.maximum(most, rows)
        self._tally.assign(tf.stack([count + 1, 1009 * digest + rows, least, most]))

    def rows(self) -> Rows:
        """Return the notes of this epoch."""
        count, digest, least, most = map(int, self._tally.numpy())
        return count, digest, least, most


def check(of_ranks: Sequence[Rows | None], ranks: Sequence[int], call: Call) -> None:
    """Check that one share is right for all batches of which gradients were added up.

    Args:
        of_ranks: the rows of each rank; None where no step adds up gradients.
        ranks: the ranks.
        call: the collective that has gathered them.

    Raises:
        MismatchError: on every rank, if it is not.
    """
    if not any(of_ranks):
        return
    rows = [counts or _NO_ROWS for counts in of_ranks]
    same_number = len({count for count, *_ in rows}) == 1
    if len(set(rows)) == 1 or (same_number and all(least == most for _, _, least, most in rows)):
        return
    received = (
        f"{count} batches of {least if count else 0} to {most} rows (rank {rank})"
        for rank, (count, _, least, most) in zip(ranks, rows, strict=True)
    )
    raise MismatchError(
        call.refusal(
            "batches of the same sizes on every rank, for a train_step that adds up gradients in "
            "variables before the optimizer reduces them",
            ", ".join(received),
            "The parts of a sum have other shares than its last batch. Pass "
            "`gradient_accumulation_steps` to the optimizer; or reduce each gradient before it is "
            "added, by a ringar.DistributedGradientTape and a plain optimizer (docs/uneven.md); or "
            'shard the data with ringar.data.shard(data, remainder="drop").',
        )
    )
