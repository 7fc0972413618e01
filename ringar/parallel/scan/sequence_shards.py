"""A recurrent layer over sequences that are sharded over ranks: each rank has some of the steps.

The forward pass is sequential: a rank receives the state before its first step from the previous
rank and sends the state after its last step to the next one. The backward pass scans the chain of
Jacobians across ranks (`ringar.parallel.scan.across`): the last rank computes the gradients of its
steps while the ranks in the middle reduce their Jacobians. After log2(P) rounds all ranks have the
gradient that enters their shard, and compute the gradients of their steps concurrently.

Each rank's weight gradients are those of its own steps; their sum is the gradient of the sequence.
A rank's steps get the gradients of the sum of all ranks' losses. If all ranks have the same loss,
or losses whose mean is the loss, the average over the ranks, as `ringar.DistributedOptimizer`
computes it, is therefore the gradient.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from ringar.collectives.broadcast import broadcast
from ringar.collectives.recv import recv
from ringar.collectives.send import send
from ringar.job.process_sets import ProcessSet
from ringar.parallel.scan import across, doubling, recurrent
from ringar.parallel.scan.chain import Differentiable, Options
from ringar.parallel.scan.recurrent import Sequence


def states(sequence: Sequence, options: Options, ranks: ProcessSet) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the states after each step of this rank's shard, and the last of them."""
    states_here = _run(sequence, options, ranks, last_only=False)
    return states_here, states_here[:, -1]


def last_state(sequence: Sequence, options: Options, ranks: ProcessSet) -> tf.Tensor:
    """Return the state after the last step of the last rank, (batch, units), on all ranks."""
    state = _run(sequence, options, ranks, last_only=True)
    return broadcast(state, ranks.ranks[-1], name="sequence/last_state", process_set=ranks)


def _run(sequence: Sequence, options: Options, ranks: ProcessSet, *, last_only: bool) -> tf.Tensor:
    def run(*tensors: tf.Tensor) -> Differentiable:
        shard = sequence.of(*tensors)
        shard = dataclasses.replace(shard, initial=_state_before(shard.initial, ranks))
        saved = recurrent.forward(shard, options.threads)
        last = saved[0][:, -1]
        if ranks.rank() + 1 < ranks.size():
            send(last, ranks.rank() + 1, name="sequence/state", process_set=ranks)

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            d_states, d_last = (None, upstream) if last_only else (upstream, upstream[:, -1])
            gradients = _back(shard, saved, d_states, d_last, options, ranks)
            if ranks.rank() > 0:  # the initial state is an argument of rank 0 only
                gradients[1] = tf.zeros_like(gradients[1])
            return gradients

        return (last if last_only else saved[0]), gradient

    return tf.custom_gradient(run)(*sequence.tensors())


def _state_before(initial: tf.Tensor, ranks: ProcessSet) -> tf.Tensor:
    if ranks.rank() == 0:
        return initial
    spec = tf.TensorSpec(initial.shape, initial.dtype)
    return recv(spec, ranks.rank() - 1, name="sequence/state", process_set=ranks)


def _back(
    shard: Sequence,
    saved: list[tf.Tensor],
    d_states: tf.Tensor | None,
    d_last: tf.Tensor,
    options: Options,
    ranks: ProcessSet,
) -> list[tf.Tensor]:
    """Return the gradients of this rank's shard, for the losses of this and all later ranks.

    `d_last` is the upstream gradient of this rank's last state; `d_states`, if given, includes it.
    """

    def local_backward(entering: tf.Tensor) -> list[tf.Tensor]:
        last = entering if d_states is not None else entering + d_last
        return recurrent.backward(shard, saved, d_states, last, options)

    line, nothing = doubling.Line(ranks, ranks.size(), reverse=True), tf.zeros_like(d_last)
    if line.index == 0:  # the end of the sequence, which sends a vector
        gradients = local_backward(nothing)
        across.exchange(across.Element(gradients[1]), nothing, line)
        return gradients
    part = None
    if line.index + 1 < line.size:
        part = _reduce(shard, saved, d_states, d_last, options)
    return local_backward(across.exchange(part, nothing, line))


def _reduce(
    shard: Sequence,
    saved: list[tf.Tensor],
    d_states: tf.Tensor | None,
    d_last: tf.Tensor,
    options: Options,
) -> across.Element:
    """Return this shard as a map of the gradient that enters at its last state."""
    addends = None
    if d_states is not None:  # the addend at dL/dh_t is the upstream gradient of h_t; none at h_0
        by_step = tf.transpose(d_states, [1, 0, 2])
        addends = tf.concat([tf.zeros_like(d_last)[None], by_step[:-1]], axis=0)
    jacobians = recurrent.jacobians(shard, saved, options.threads)
    return across.reduce_shard(jacobians, d_last, addends, True, options.threads)
