"""A chain of matrices that is cut over ranks gives the results of the chain on one rank."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.errors import NotInitializedError
from ringar.parallel.scan import scan, scan_across
from tests.plugin import fast_if

pytestmark = [pytest.mark.usefixtures("initialized")]


@dataclasses.dataclass
class Cut:
    """A chain, and which of its steps this rank has."""

    lengths: list[int]
    rank: int
    adjoint: bool
    matrices: Any
    vector: Any
    addends: Any
    factors: Any  # of the losses: for each rank's vectors

    @property
    def chain(self) -> list[Any]:
        return [self.matrices, self.vector, *([] if self.addends is None else [self.addends])]

    @property
    def share(self) -> list[Any]:
        matrices, vector, *addends = self.chain
        steps = self.steps_of(self.rank)
        return [matrices[steps], vector, *(addend[steps] for addend in addends)]

    @property
    def has_vector(self) -> bool:
        return self.rank == (len(self.lengths) - 1 if self.adjoint else 0)

    def steps_of(self, rank: int) -> slice:
        begin = sum(self.lengths[:rank])
        return slice(begin, begin + self.lengths[rank])

    def vectors_of(self, vectors: Any, rank: int) -> Any:
        steps = self.steps_of(rank)
        return vectors[steps.start : steps.stop + 1]

    def loss(self, vectors: Any, rank: int) -> Any:
        """Of a rank, whose vectors these are."""
        return tf.reduce_sum(vectors**2 * self.factors[rank][: self.lengths[rank] + 1])


def make(
    lengths: list[int], rank: int, *, adjoint: bool, add: bool, batch: int = 3, size: int = 5,
    dtype: Any = tf.float64,
) -> Cut:  # fmt: skip
    random, steps = np.random.default_rng(sum(lengths)), sum(lengths)

    def normal(*shape: int) -> Any:
        return tf.constant(random.normal(size=shape), dtype)

    return Cut(
        lengths, rank, adjoint, normal(steps, batch, size, size) / size**0.5, normal(batch, size),
        normal(steps, batch, size) if add else None,
        normal(len(lengths), max(lengths) + 1, batch, size),
    )  # fmt: skip


def expected(cut: Cut) -> tuple[Any, list[Any]]:
    """The vectors of the whole chain, and the gradients of the sum of all ranks' losses."""
    with tf.GradientTape() as tape:
        tape.watch(cut.chain)
        vectors = scan(*(chain := cut.chain), adjoint=cut.adjoint)
        losses = [cut.loss(cut.vectors_of(vectors, q), q) for q in range(len(cut.lengths))]
        loss = tf.add_n(losses)
    return vectors, tape.gradient(loss, chain, unconnected_gradients="zero")


def result(cut: Cut, *, graph: bool, **options: Any) -> tuple[Any, list[Any]]:
    def run(*chain: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            tape.watch(chain)
            vectors = scan_across(*chain, adjoint=cut.adjoint, **options)
            loss = cut.loss(vectors, cut.rank)
        return vectors, tape.gradient(loss, chain)

    function: Any = tf.function(run) if graph else run
    vectors, gradients = function(*cut.share)
    return vectors, gradients


def check(cut: Cut, *, graph: bool, tolerance: float = 1e-9, **options: Any) -> None:
    vectors, gradients = result(cut, graph=graph, **options)
    all_vectors, all_gradients = expected(cut)
    steps = cut.steps_of(cut.rank)
    expected_gradients = [
        all_gradients[0][steps], all_gradients[1] * float(cut.has_vector),
        *(gradient[steps] for gradient in all_gradients[2:]),
    ]  # fmt: skip
    pairs = [
        (vectors, cut.vectors_of(all_vectors, cut.rank)),
        *zip(gradients, expected_gradients, strict=True),
    ]
    for value, expected_value in pairs:
        assert value.shape == expected_value.shape
        scale = max(float(np.abs(expected_value).max(initial=0)), 1)
        np.testing.assert_allclose(value, expected_value, rtol=0, atol=tolerance * scale)


#: Of as many ranks as there are.
LENGTHS = {"even": [4, 4, 4, 4], "ragged": [1, 7, 3, 2], "empty": [0, 5, 0, 0], "none": [0] * 4}


@pytest.mark.parametrize(
    ("lengths", "add", "adjoint", "graph"),
    [
        # Each two of the last three in all their combinations.
        fast_if(add ^ adjoint ^ graph, lengths, add, adjoint, graph)
        for lengths in LENGTHS
        for add in (False, True)
        for adjoint in (False, True)
        for graph in (False, True)
    ],
)
def test_a_chain_that_is_cut(
    lengths: str, add: bool, adjoint: bool, graph: bool, rank: int, size: int
) -> None:
    """The first rank's shard is empty, too, and so is the last one's."""
    check(make(LENGTHS[lengths][:size], rank, adjoint=adjoint, add=add), graph=graph)


@pytest.mark.parametrize("shape", [(1, 1), (2, 20)])
def test_sizes_and_levels(shape: tuple[int, int], rank: int, size: int) -> None:
    batch, units = shape
    cut = make([6, 3, 8, 5][:size], rank, adjoint=True, add=True, batch=batch, size=units)
    for levels in (None, 0, 1, 9):
        check(cut, graph=False, levels=levels, threads=2)


def test_float32(rank: int, size: int) -> None:
    cut = make([5, 2, 3, 4][:size], rank, adjoint=False, add=True, dtype=tf.float32)
    vectors, gradients = result(cut, graph=True)
    assert {t.dtype for t in (vectors, *gradients)} == {tf.float32}
    check(cut, graph=True, tolerance=1e-5)


def test_other_ranks_need_no_vector(rank: int, size: int) -> None:
    cut = make([3, 3, 3, 3][:size], rank, adjoint=True, add=False)
    vectors = scan_across(cut.share[0], cut.vector if cut.has_vector else None, adjoint=True)
    np.testing.assert_allclose(vectors, cut.vectors_of(expected(cut)[0], rank), atol=1e-12)


@pytest.mark.ranks(3, 4)
def test_some_ranks(rank: int, size: int) -> None:
    """In the order of the process set, which is not that of the job."""
    ranks = ringar.add_process_set([2, 0])
    if ranks.included():
        cut = make([3, 4], ranks.rank(), adjoint=False, add=True)
        check(cut, graph=False, process_set=ranks)
    ringar.remove_process_set(ranks)


def test_arguments() -> None:
    matrices, vector = tf.zeros([3, 2, 4, 4]), tf.zeros([2, 4])
    with pytest.raises(TypeError, match="must be of one dtype.*Received: vector of float64, matri"):
        scan_across(matrices, tf.zeros([2, 4], tf.float64))
    with pytest.raises(TypeError, match="float32 or float64. Received: matrices of int32"):
        scan_across(tf.zeros([3, 2, 4, 4], tf.int32), None)
    with pytest.raises(ValueError, match=r"must have the shape \(n, batch, size, size\). Received"):
        scan_across(tf.zeros([3, 2, 4, 5]), vector)
    with pytest.raises(
        ValueError, match=r"`vector` must have the shape \(2, 4\).*Received: \(4,\)"
    ):
        scan_across(matrices, tf.zeros([4]))
    with pytest.raises(ValueError, match=r"`addends` must have the shape \(3, 2, 4\).*Received: "):
        scan_across(matrices, vector, tf.zeros([2, 2, 4]))
    values: tuple[Any, ...] = (-1, 1.5, True)
    for levels in values:
        with pytest.raises(ValueError, match="`levels` must be None or an integer, 0 or more"):
            scan_across(matrices, vector, levels=levels)
    with pytest.raises(ValueError, match="threads"):
        scan_across(matrices, vector, threads=0)


@pytest.mark.ranks(2, 3)
def test_batches_that_differ(rank: int) -> None:
    """Whoever receives says so."""
    batch = 2 if rank else 3
    matrices, vector = tf.zeros([1, batch, 4, 4]), tf.zeros([batch, 4])
    if rank == 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"recv \"scan_across/1\" from"):
            scan_across(matrices, vector)
    elif rank == 0:
        scan_across(matrices, vector)
    ringar.shutdown()  # rank 0's next message to rank 1 would tell of the refusal
    ringar.init()


@pytest.mark.ranks(1)
def test_before_init() -> None:
    ringar.shutdown()
    try:
        with pytest.raises(NotInitializedError, match="ringar.init"):
            scan_across(tf.zeros([3, 2, 4, 4]), tf.zeros([2, 4]))
    finally:
        ringar.init()
