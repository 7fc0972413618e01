"""A chain whose matrices lie on several ranks: each has a stretch, in the order of the ranks.

The first rank has the vector and scans at once. Each other one but the last reduces its stretch to
one affine map, which takes as many products as it has matrices. The maps are scanned by recursive
doubling (`doubling`). After log2(P) rounds a rank knows what all
ranks before it make of the vector, and sweeps down its own stretch. That is O(n/P + log P) steps of
a product each, where the chain on one rank takes n.

What travels is a matrix and a vector per example; from a rank whose part reaches back to the
beginning, where the vector is, a vector alone.

Within this file vectors are rows, so that a map is `v -> v Q + g` and "first X, then Y" is the
product `Q_X Q_Y`. P ranks of a process set have places 0 ... P - 1 in the order of the chain,
which is the reverse of their own for an adjoint one.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from ringar.collectives.recv import recv
from ringar.job.process_sets import ProcessSet, or_all
from ringar.parallel.scan import chain, computation, doubling


@dataclasses.dataclass(frozen=True)
class Element:
    """Hold a map `v -> v Q + g`, or, without a matrix, the vector that has come through it.

    Attributes:
        vector: g, or the vector, (batch, size).
        matrix: Q, (batch, size, size), or None.
    """

    vector: tf.Tensor
    matrix: tf.Tensor | None = None

    def then(self, after: Element) -> Element:
        """Return the composition of this map, first, and another."""
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
    """Scan a chain whose matrices lie on several ranks, as `ringar.parallel.scan.scan` does on one.

    Every rank of the process set calls it with its stretch, rank 0 with the first steps. Stretches
    may differ in length, and may be empty. Differentiable once; gradients of the other ranks'
    losses with respect to this rank's matrices are included, as if all stretches were one chain and
    all losses one sum. Not in compiled functions, since `ringar.send` is not.

    Args:
        matrices: (n, batch, size, size) of this rank; batch, size and dtype alike on all ranks.
        vector: (batch, size). The first rank's counts (the last one's, if `adjoint`); others may
            give None.
        addends: (n, batch, size) of this rank, or None; on all ranks alike.
        adjoint: as of the scan.
        levels: as of the scan, for the sweep through this rank's stretch.
        threads: as of the scan.
        process_set: the ranks; default all.

    Returns:
        (n + 1, batch, size): the vectors before, between and after this rank's matrices. What
        comes after the last of them is what comes before the first of the next rank's.

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
    given = [] if addends is None else [tf.convert_to_tensor(addends)]
    chain.check(matrices, vector, *given)

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

    return tf.custom_gradient(run)(matrices, vector, *given)


def _sweep(
    matrices: tf.Tensor,
    vector: tf.Tensor,
    entering: tf.Tensor | None,
    addends: tf.Tensor | None,
    adjoint: bool,
    options: chain.Options,
    ranks: ProcessSet,
) -> tf.Tensor:
    """Return the scan across ranks, `entering` being added to what comes into this rank."""
    line = doubling.Line(ranks, ranks.size(), reverse=adjoint)
    if line.index == 0:  # has the vector, so that a vector is all it has to hand on
        if entering is not None:
            vector += entering
        vectors = chain.run(matrices, vector, addends, adjoint, options)
        exchange(Element(vectors[0 if adjoint else -1]), vector, line)
        return vectors
    own = None
    if line.index + 1 < line.size:
        own = reduce_shard(matrices, entering, addends, adjoint, options.threads)
    vector = exchange(own, vector, line)
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
    """Return a rank's stretch as one map.

    Args:
        matrices: of the stretch, as the scan's.
        entering: (batch, size), added to what comes in, or None.
        addends: of the stretch, or None.
        adjoint: as of the scan.
        threads: how many to use.
    """
    whole = chain.Options(chain.WHOLE, threads)
    product, addend = chain.reduce_chain(matrices, addends, adjoint=adjoint, options=whole)
    matrix = product if adjoint else tf.linalg.matrix_transpose(product)
    return Element(addend if entering is None else apply(entering, matrix) + addend, matrix)


def exchange(own: Element | None, like: tf.Tensor, line: doubling.Line) -> tf.Tensor:
    """Return the vector that enters this rank's stretch; `like` itself where nothing comes before.

    Args:
        own: what this rank hands on: a vector at the first place, then a map, None at the last.
        like: (batch, size), of the shape and dtype of all vectors.
        line: the ranks in the order of the chain.
    """

    def receive(places: range, source: int, name: str) -> Element:
        specs = [tf.TensorSpec(like.shape, like.dtype)]
        if places.start > 0:  # what it has does not reach back to the vector
            specs.append(tf.TensorSpec([*like.shape, like.shape[-1]], like.dtype))
        return Element(*recv(specs, source, name=name, process_set=line.ranks))

    before = doubling.before(own, line, receive, "scan_across")
    return like if before is None else before.vector
