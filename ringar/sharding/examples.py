"""Whether the ranks of a model group were fed the same examples, by a digest of the first batch.

A layer that reads the model's input keeps a digest of the first batch that it sees in a variable;
when that step is over, the callback compares them. A step that computes with different examples
gives wrong numbers on all ranks of the group and no error by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from ringar.collectives import allgather
from ringar.sharding.grid import Grid


class Digest:
    """Compute a digest of the first batch that a layer sees since `reset`."""

    def __init__(self) -> None:
        with tf.init_scope():
            self._value = tf.Variable(0, trainable=False, dtype=tf.int32, name="ringar_digest")

    def take(self, x: tf.Tensor) -> None:
        """Note the digest of a batch, if it is the first."""

        def note() -> tf.Tensor:
            bits = tf.reshape(tf.bitcast(tf.cast(x, tf.float32), tf.int32), [-1])
            factors = 2 * tf.range(tf.size(bits)) + 1  # so that order counts
            # 0 is for none.
            return self._value.assign(tf.reduce_sum(bits * factors) | 1)

        if self._value is not None:
            tf.cond(tf.equal(self._value, 0), note, lambda: self._value.read_value())

    def reset(self) -> None:
        """Forget the digest."""
        self._value.assign(0)

    @property
    def value(self) -> int:
        """The digest; 0 if no batch was seen."""
        return int(self._value.numpy())


def check(digests: list[tuple[str, Digest]], grid: Grid) -> None:
    """Compare what the ranks of this rank's model group have seen. Collective over all ranks.

    Args:
        digests: with the names of their layers, the same ones on every rank.
        grid: of the layers.

    Raises:
        ValueError: on every rank of the job, if ranks of a group differ.
    """
    if grid.model == 1 or not digests:
        return
    own = np.array([[digest.value for _, digest in digests]], np.int64)
    everyone = np.asarray(allgather(own, name="examples"))
    for d in range(grid.data):
        group = everyone[d * grid.model : (d + 1) * grid.model]
        if (group != group[0]).any():
            layer = digests[int(np.flatnonzero((group != group[0]).any(axis=0))[0])][0]
            ranks = range(d * grid.model, (d + 1) * grid.model)
            raise refusal(f"in layer {layer}, batches", [int(row[0]) for row in group], ranks)


def refusal(received: str, digests: Iterable[int], ranks: Iterable[int]) -> ValueError:
    """Return the error of ranks that were fed different examples.

    Args:
        received: what differs.
        digests: of it, by rank.
        ranks: of the job.
    """
    those = ", ".join(
        f"{digest & 0xFFFFFFFF:08x} (rank {rank})"
        for digest, rank in zip(digests, ranks, strict=True)
    )
    return ValueError(
        f"The examples must be the same on every rank of a model group. Received: {received} with "
        f"the digests {those}. Share the data with ringar.data.shard(dataset, grid=grid), shuffle "
        "with a seed, and augment before the model."
    )
