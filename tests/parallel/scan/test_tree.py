"""The scan over any associative operator, and its plan as plain data."""

from __future__ import annotations

import concurrent.futures
import itertools
from typing import Any

import numpy as np
import pytest

from ringar.parallel.scan import tree
from ringar.parallel.scan.tree import Kind, Phase, Step

pytestmark = [pytest.mark.ranks(1)]


def text(left: str, right: str) -> str:
    """Strings are joined: associative, and the order of the operands shows."""
    return left + right


def letters(count: int) -> list[str]:
    return [chr(ord("A") + i) for i in range(count)]


@pytest.mark.parametrize("length", range(1, 71))
def test_prefixes(length: int) -> None:
    elements = letters(length)
    expected = [None, *("".join(elements[:i]) for i in range(1, length))]
    for levels in (None, *range(9)):
        assert tree.scan(elements, text, levels) == expected


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 33, 70])
def test_matrices(length: int) -> None:
    """Of different sizes, against the chain of matrix-vector products."""
    random = np.random.default_rng(length)
    sizes = random.integers(1, 9, size=length)
    elements: list[Any] = [random.normal(size=(sizes[0],))]
    for rows, columns in zip(sizes[1:], sizes, strict=False):
        elements.append(random.normal(size=(rows, columns)) / np.sqrt(columns))
    expected = elements[:1]
    for matrix in elements[1:-1]:
        expected.append(matrix @ expected[-1])
    elements[-1] = None  # nobody reads it
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for levels in range(tree.most_levels(length) + 1):
            vectors = tree.scan(elements, lambda a, b: b @ a, levels, pool.map)
            assert vectors[0] is None
            for vector, reference in zip(vectors[1:], expected, strict=False):
                np.testing.assert_allclose(vector, reference, rtol=1e-9, atol=1e-12)


def test_elements_stay_as_they_are() -> None:
    elements = letters(9)
    tree.scan(elements, text)
    assert elements == letters(9)


def rounds(plan: tree.Plan) -> list[list[tuple[int, int]]]:
    return [[(step.left, step.right) for step in steps] for steps in plan.rounds]


def test_plan_of_eight() -> None:
    """The vector is element 0, and element 7, the last Jacobian, is read by no product."""
    assert rounds(tree.plan(8)) == [
        [(0, 1), (2, 3), (4, 5)], [(1, 3)], [],
        [(3, 7)], [(1, 3), (5, 7)], [(0, 1), (2, 3), (4, 5), (6, 7)],
    ]  # fmt: skip
    steps = tree.plan(8)
    assert [step.kind for step in steps.up[0]] == [Kind.VECTOR, Kind.MATRICES, Kind.MATRICES]
    assert steps.up[1] == (Step(Phase.UP, 1, 1, 3, Kind.VECTOR),)
    assert [step.kind for step in steps.down[1]] == [Kind.COPY, Kind.VECTOR]


def test_plan_of_the_chain() -> None:
    steps = tree.plan(5, levels=0)
    assert rounds(steps) == [[(0, 1)], [(1, 2)], [(2, 3)], [(3, 4)]]
    assert {step.phase for (step,) in steps.rounds} == {Phase.SERIAL}
    assert (steps.count(Kind.COPY), steps.count(Kind.VECTOR), steps.count(Kind.MATRICES)) == (
        1, 3, 0,
    )  # fmt: skip


def test_plan_of_a_hybrid() -> None:
    """One level up, the blocks of two one after the other, one level down."""
    assert rounds(tree.plan(7, levels=1)) == [
        [(0, 1), (2, 3), (4, 5)],
        [(1, 3)], [(3, 5)], [(5, 6)],
        [(0, 1), (2, 3), (4, 5)],
    ]  # fmt: skip


@pytest.mark.parametrize("length", [*range(9), 15, 16, 17, 40, 64, 70])
def test_numbers_of_products(length: int) -> None:
    chain = tree.plan(length, 0)
    assert chain.count(Kind.VECTOR) == max(length - 2, 0)
    for levels in range(tree.most_levels(length) + 1):
        steps = tree.plan(length, levels)
        counts = dict.fromkeys(Kind, 0)
        for step in itertools.chain.from_iterable(steps.rounds):
            counts[step.kind] += 1
        assert counts == {kind: steps.count(kind) for kind in Kind}
        assert counts[Kind.MATRICES] + counts[Kind.VECTOR] < max(2 * length, 1)
        # All levels above the first give each matrix to one product of two matrices at most.
        assert counts[Kind.MATRICES] <= max(length - 2, 0)
    if length > 2:
        full = [
            steps for steps in tree.plan(length).rounds
            if any(step.kind is not Kind.COPY for step in steps)
        ]  # fmt: skip
        assert len(full) <= 2 * tree.most_levels(length) - 2 or length == 3


@pytest.mark.parametrize("length", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_chain_that_is_spread_over_ranks(length: int, parts: int) -> None:
    """Each part is reduced to one element; then each sweeps down from what comes before it."""
    elements = letters(length * parts)
    shards = [elements[i * length : (i + 1) * length] for i in range(parts)]
    steps = tree.plan(length, with_total=True)
    products = [tree.reduce(shard, steps, text) for shard in shards]
    before = tree.scan([block[-1] for block in products], text)
    prefixes = [
        prefix for block, incoming in zip(products, before, strict=True)
        for prefix in tree.sweep(block, steps, text, incoming)
    ]  # fmt: skip
    assert prefixes == tree.scan(elements, text)


def test_numbers_out_of_range() -> None:
    with pytest.raises(ValueError, match="must not be negative. Received: length=3, levels=-1"):
        tree.plan(3, -1)
    with pytest.raises(ValueError, match="must be all 3 of them for the product of all 8"):
        tree.plan(8, 2, with_total=True)
