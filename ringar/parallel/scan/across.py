"""The scan of a chain whose matrices are sharded over ranks, in the order of the ranks.

The first rank has the vector and scans its shard at once. Each other rank but the last reduces its
shard to one affine map, which takes one product per matrix. Recursive doubling (`doubling`) scans
the maps. After log2(P) rounds each rank has the vector that enters its shard, and sweeps down its
shard. That is O(n/P + log P) sequential products; the chain on one rank takes n.

A message has a matrix and a vector per example, or a vector alone, if the sender's part includes
the beginning of the chain.

In this file vectors are rows: a map is `v -> v Q + g`, and "first X, then Y" is the product
`Q_X Q_Y`. The P ranks of a process set have indices 0 ... P - 1 in the order of the chain, which
is the reverse of the order of ranks for an adjoint chain.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from ringar.collectives.recv import recv
from ringar.job.process_sets import ProcessSet, or_all
from ringar.parallel.scan import chain, computation, doubling


@dataclasses.dataclass(frozen=True)
class Element:
    """Hold a map `v -> v Q + g`, or its result, a vector, if there is no matrix.

    Attributes:
        vector: g, or the result, (batch, size).
        matrix: Q, (batch, size, size), or None.
    """

    vector: tf.Tensor
    matrix: tf.Tensor | None = None

    def then(self, after: Element) -> Element:
        """Return the composition of two maps: this one first."""
        vector = apply(self.vector, after.matrix) + after.vector
        return Element(vector, None if self.matrix is None else self.matrix @ after.matrix)

    def tensors(self) -> list[tf.Tensor]:
        """Return the tensors to send."""
        return [self.vector] if self.matrix is None else [self.vector, self.matrix]


def apply(vector: tf.Tensor, matrix: tf.Tensor | None) -> tf.Tensor:
    """Return rows times matrices."""
    return tf.squeeze(vector[:, None, :] @ matrix, axis=1)


def scan_across(
    matrices: tf.Tensor,
    vector: tf.Tensor | None,
    addends: tf.Tensor | None = None,
    *,
    adjoint: bool = False,
    levels: int | None = None,
    threads: int | None = None,
    process_set: ProcessSet | None = None,
) -> tf.Tensor:
    """Scan a chain whose matrices are sharded over ranks; see `ringar.parallel.scan.scan`.

    Every rank of the process set calls it with its shard, rank 0 with the first steps. Shards may
    differ in length, and may be empty. Differentiable once: gradients are those of the sum of all
    ranks' losses, as if all shards were one chain. Not in compiled functions, since `ringar.send`
    is not.

    Args:
        matrices: (n, batch, size, size), this rank's shard. Batch, size and dtype are the same on
            all ranks.
        vector: (batch, size). The first rank's is used, or the last rank's, if `adjoint`; other
            ranks may pass None.
        addends: (n, batch, size), this rank's shard, or None on all ranks.
        adjoint: as for the scan.
        levels: as for the scan, for the sweep through this rank's shard.
        threads: as for the scan.
        process_set: the ranks; default all.

    Returns:
        (n + 1, batch, size): the vectors before, between and after this rank's matrices. The last
        vector of a rank is the first one of the next rank.

    Raises:
        TypeError: as `ringar.parallel.scan.scan`.
        ValueError: as `ringar.parallel.scan.scan`.
        NotInitializedError: before `ringar.init()`.
        RingarError: as `ringar.recv`.
    """
    ranks = or_all(process_set)
    options = chain.Options(chain.levels_of(levels), computation.usable_threads(threads))
    matrices = tf.convert_to_tensor(matrices)
    if vector is None:
        vector = tf.zeros(tf.shape(matrices)[1:3], matrices.dtype)
    vector = tf.convert_to_tensor(vector)
    tensors = [] if addends is None else [tf.convert_to_tensor(addends)]
    chain.check(matrices, vector, *tensors)

    def run(matrices: tf.Tensor, vector: tf.Tensor, *addends: tf.Tensor) -> chain.Differentiable:
        vectors = _sweep(
            matrices, vector, None, addends[0] if addends else None, adjoint, options, ranks
        )

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            entering, rest = upstream[0], upstream[1:]
            if not adjoint:
                entering, rest = upstream[-1], upstream[:-1]
            nothing = tf.zeros_like(entering)
            back = _sweep(matrices, nothing, entering, rest, not adjoint, options, ranks)
            before, after = (vectors[1:], back[:-1]) if adjoint else (back[1:], vectors[:-1])
            d_vector = back[-1] if adjoint else back[0]
            if doubling.Line(ranks, ranks.size(), reverse=adjoint).index > 0:
                d_vector = nothing
            gradients = [before[..., :, None] * after[..., None, :], d_vector]
            return [*gradients, *[back[:-1] if adjoint else back[1:] for _ in addends]]

        return vectors, gradient

    return tf.custom_gradient(run)(matrices, vector, *tensors)


def _sweep(
    matrices: tf.Tensor,
    vector: tf.Tensor,
    entering: tf.Tensor | None,
    addends: tf.Tensor | None,
    adjoint: bool,
    options: chain.Options,
    ranks: ProcessSet,
) -> tf.Tensor:
    """Return the scan across ranks, with `entering` added to the vector that enters this shard."""
    line = doubling.Line(ranks, ranks.size(), reverse=adjoint)
    if line.index == 0:  # has the vector, so it sends a vector only
        if entering is not None:
            vector += entering
        vectors = chain.run(matrices, vector, addends, adjoint, options)
        exchange(Element(vectors[0 if adjoint else -1]), vector, line)
        return vectors
    element = None
    if line.index + 1 < line.size:
        element = reduce_shard(matrices, entering, addends, adjoint, options.threads)
    vector = exchange(element, vector, line)
    if entering is not None:
        vector += entering
    return chain.run(matrices, vector, addends, adjoint, options)


def reduce_shard(
    matrices: tf.Tensor,
    entering: tf.Tensor | None,
    addends: tf.Tensor | None,
    adjoint: bool,
    threads: int,
) -> Element:
    """Return a rank's shard as one map.

    Args:
        matrices: the matrices of the shard.
        entering: (batch, size), added to the vector that enters, or None.
        addends: the addends of the shard, or None.
        adjoint: as for the scan.
        threads: the number of threads.
    """
    options = chain.Options(chain.WHOLE, threads)
    product, addend = chain.reduce_chain(matrices, addends, adjoint=adjoint, options=options)
    matrix = product if adjoint else tf.linalg.matrix_transpose(product)
    return Element(addend if entering is None else apply(entering, matrix) + addend, matrix)


def exchange(part: Element | None, like: tf.Tensor, line: doubling.Line) -> tf.Tensor:
    """Return the vector that enters this rank's shard; `like` itself at the first index.

    Args:
        part: this rank's part: a vector at the first index, None at the last, a map otherwise.
        like: (batch, size), with the shape and dtype of all vectors.
        line: the ranks in the order of the chain.
    """

    def receive(indices: range, source: int, name: str) -> Element:
        specs = [tf.TensorSpec(like.shape, like.dtype)]
        if indices.start > 0:  # the part does not include the vector
            specs.append(tf.TensorSpec([*like.shape, like.shape[-1]], like.dtype))
        return Element(*recv(specs, source, name=name, process_set=line.ranks))

    before = doubling.before(part, line, receive, "scan_across")
    return like if before is None else before.vector
