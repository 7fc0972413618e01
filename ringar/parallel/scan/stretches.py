"""A recurrent layer over sequences that are cut over ranks: each rank has a stretch of the steps.

Forward there is no way around the order of the steps: a rank gets the state before its first step
from the rank before it, and hands the state after its last step on. Backward the chain of Jacobians
is scanned across ranks (`ringar.parallel.scan.across`): the last rank goes back through its
steps while those in the middle reduce theirs; in log2(P) rounds all learn what comes into them from
the later ranks; then they go back through their own steps, again at the same time.

Each rank's weight gradients are those of its own steps; their sum is that of the sequence. Where
all ranks have the same loss, or losses of their own whose mean is the loss, an average over the
ranks, as `ringar.DistributedOptimizer` makes it, is the gradient: what each rank gets back
holds the losses of all ranks added up.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from ringar.collectives.broadcast import broadcast
from ringar.collectives.recv import recv
from ringar.collectives.send import send
from ringar.job.process_sets import ProcessSet
from ringar.parallel.scan import across, doubling, recurrent
from ringar.parallel.scan.chain import Way
from ringar.parallel.scan.recurrent import Sequence


def states(sequence: Sequence, way: Way, ranks: ProcessSet) -> tf.Tensor:
    """Return the states after each step of this rank's stretch, (batch, steps, units)."""
    return _run(sequence, way, ranks, last_only=False)


def last_state(sequence: Sequence, way: Way, ranks: ProcessSet) -> tf.Tensor:
    """Return the state after the last step of the last rank, (batch, units), on all ranks."""
    own = _run(sequence, way, ranks, last_only=True)
    return broadcast(own, ranks.ranks[-1], name="sequence/last_state", process_set=ranks)


def _run(sequence: Sequence, way: Way, ranks: ProcessSet, *, last_only: bool) -> tf.Tensor:
    def run(*given: tf.Tensor) -> Any:
        own = sequence.of(*given)
        own = dataclasses.replace(own, initial=_state_before(own.initial, ranks))
        written = recurrent.forward(own, way.threads)
        last = written[0][:, -1]
        if ranks.rank() + 1 < ranks.size():
            send(last, ranks.rank() + 1, name="sequence/state", process_set=ranks)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            d_states, d_last = (None, upstream) if last_only else (upstream, upstream[:, -1])
            slopes = _back(own, written, d_states, d_last, way, ranks)
            if ranks.rank() > 0:  # the state before this stretch is no argument of this rank
                slopes[1] = tf.zeros_like(slopes[1])
            return slopes

        return (last if last_only else written[0]), gradient

    return tf.custom_gradient(run)(*sequence.given())


def _state_before(initial: tf.Tensor, ranks: ProcessSet) -> tf.Tensor:
    if ranks.rank() == 0:
        return initial
    spec = tf.TensorSpec(initial.shape, initial.dtype)
    return recv(spec, ranks.rank() - 1, name="sequence/state", process_set=ranks)


def _back(
    own: Sequence,
    written: list[tf.Tensor],
    d_states: tf.Tensor | None,
    d_last: tf.Tensor,
    way: Way,
    ranks: ProcessSet,
) -> list[tf.Tensor]:
    """Return the gradients of this rank's stretch, what later ranks make of theirs included.

    `d_last` is what comes in at the last state on this rank; it is in `d_states`, if there are any.
    """

    def go_back(comes_in: tf.Tensor) -> list[tf.Tensor]:
        last = comes_in if d_states is not None else comes_in + d_last
        return recurrent.backward(own, written, d_states, last, way)

    line, nothing = doubling.Line(ranks, ranks.size(), reverse=True), tf.zeros_like(d_last)
    if line.place == 0:  # the end of the sequence: what it hands on is a vector
        slopes = go_back(nothing)
        across.exchange(across.Element(slopes[1]), nothing, line)
        return slopes
    part = None
    if line.place + 1 < line.size:
        part = _reduce(own, written, d_states, d_last, way)
    return go_back(across.exchange(part, nothing, line))


def _reduce(
    own: Sequence,
    written: list[tf.Tensor],
    d_states: tf.Tensor | None,
    d_last: tf.Tensor,
    way: Way,
) -> across.Element:
    """Return this stretch, as a map of what comes in at its last state."""
    addends = None
    if d_states is not None:  # that of h_t comes in where the vector is dL/dh_t; none at h_0
        by_step = tf.transpose(d_states, [1, 0, 2])
        addends = tf.concat([tf.zeros_like(d_last)[None], by_step[:-1]], axis=0)
    jacobians = recurrent.jacobians(own, written, way.threads)
    return across.reduce_stretch(jacobians, d_last, addends, True, way.threads)
