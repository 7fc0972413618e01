"""Counts of operations against counting by hand, and the figures of the paper."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import pytest

from benchmarks.scan import analysis
from ringar.parallel.scan import counting, tree
from ringar.parallel.scan.counting import Counter, Product, Round
from ringar.parallel.scan.elements import Element, compose
from ringar.parallel.scan.sparse import scipy_sparse
from ringar.parallel.scan.stages import Chain
from tests.parallel.scan import nets

pytestmark = [pytest.mark.ranks(1)]

layers = keras.layers


def matrices(count: int, batch: int = 1, seed: int = 0) -> list[Element]:
    """Sparse ones of different sizes, some of them per example."""
    random = np.random.default_rng(seed)
    sizes = random.integers(3, 9, size=count + 1)
    elements = []
    for i, (rows, columns) in enumerate(zip(sizes[1:], sizes, strict=False)):
        per_example = i % 3 == 1
        blocks = [
            scipy_sparse().csr_array(
                (random.random((rows, columns)) < 0.4) * random.random((rows, columns))
            )
            for _ in range(batch if per_example else 1)
        ]
        matrix = scipy_sparse().block_diag(blocks, format="csr")
        elements.append(Element(scipy_sparse().csr_array(matrix), per_example))
    return elements


def by_hand(left: Any, right: Element, batch: int) -> int:
    """Twice the pairs of numbers other than 0 that are multiplied, of the whole batch."""
    if isinstance(left, np.ndarray):
        return 2 * right.matrix.nnz * (1 if right.per_example else batch)
    expanded = [
        np.kron(np.eye(batch), e.matrix.toarray())
        if not e.per_example and (left.per_example or right.per_example)
        else e.matrix.toarray()
        for e in (left, right)
    ]
    first, second = ((matrix != 0).astype(int) for matrix in expanded)
    return 2 * int((second @ first).sum())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 6, 13])
def test_counts(count: int, batch: int) -> None:
    elements = matrices(count, batch)
    width = elements[0].matrix.shape[1] if count else 4
    counter = Counter(elements, batch)
    for levels in range(tree.most_levels(counter.length)):
        expected: list[int] = []

        def operator(left: Any, right: Any, flops: list[int] = expected) -> Any:
            flops.append(by_hand(left, right, batch))
            return compose(left, right)

        tree.scan([np.ones((batch, width)), *elements, None], operator, levels)
        rounds = counter.count(levels)
        assert [p.flops for step in rounds for p in step.products] == expected
        assert counting.critical_path(rounds, 1) == sum(expected)
        if levels == 0:
            assert counting.critical_path(rounds) == sum(expected)


def test_one_example_stands_for_a_batch() -> None:
    elements = matrices(9)
    example, batch = Counter(elements), Counter(elements, scale=5)
    for levels in (0, 2):
        for round_of_one, round_of_batch in zip(
            example.count(levels), batch.count(levels), strict=True
        ):
            for product, larger in zip(round_of_one.products, round_of_batch.products, strict=True):
                assert larger.flops in (product.flops, 5 * product.flops)
                assert not product.is_vector or larger.flops == 5 * product.flops


def test_the_time_of_a_round() -> None:
    products = tuple(Product(flops, True, 0.0, 1) for flops in (3, 5, 4))
    step = Round(tree.Phase.UP, 0, products)
    assert (step.flops, step.time(), step.time(1), step.time(2)) == (12, 5, 12, 6)
    assert Round(tree.Phase.UP, 0, ()).time() == 0


def test_too_many_operations() -> None:
    elements = matrices(13)
    with pytest.raises(counting.TooManyError, match="operations"):
        Counter(elements, limit=10).count(2)
    Counter(elements, limit=10).count(0)


def diagonals(count: int, size: int = 50) -> list[Element]:
    return [Element(scipy_sparse().csr_array(np.eye(size)), True) for _ in range(count)]


def test_levels_are_chosen_by_the_critical_path() -> None:
    """Products of diagonal matrices cost as much as those with a vector; of dense ones, more."""
    assert counting.choose(Counter(diagonals(30))) >= 3
    assert counting.choose(Counter(diagonals(30)), workers=1) == 0
    dense = [Element(scipy_sparse().csr_array(np.ones((50, 50))), False) for _ in range(30)]
    assert counting.choose(Counter(dense)) == 0
    # Shared by so many examples that one product is cheaper than one vector each.
    assert counting.choose(Counter(dense, scale=1000)) >= 3


@pytest.mark.parametrize("levels", [None, 0, 1, 2])
def test_analyze_counts_what_a_scan_multiplies(levels: int | None) -> None:
    model = nets.build("convolutions")
    x, _ = nets.data("convolutions", rows=2)
    report = analysis.analyze(model, x, levels)
    stages, elements = analysis._elements(Chain.of(model.layers, model.input_shape[1:]), x)
    assert [stage.kind for stage in stages] == [
        "convolution", "relu", "max-pooling", "convolution", "tanh", "convolution", "relu",
        "max-pooling", "dense", "relu", "dense",
    ]  # fmt: skip
    assert report.levels == (3 if levels is None else levels)
    assert report.chain == Counter([*reversed(elements[1:])], 2).count(0)
    assert report.plain == 2 * 2 * sum(stage.entries for stage in stages[1:])
    assert sum(step.flops for step in report.chain) < report.plain
    products = [product for step in report.rounds for product in step.products]
    assert sum(not product.is_vector for product in products) == tree.plan(12, report.levels).count(
        tree.Kind.MATRICES
    )
    assert all(0 <= product.sparsity < 1 for product in products)
    text = analysis.levels_table(report)
    assert f"scan, {report.levels} levels" in text


def test_guaranteed_zeros_are_those_of_every_net() -> None:
    """What is not guaranteed to be zero is not zero for some weights and inputs."""
    net = [
        layers.Conv2D(4, 3, strides=2, padding="same"),
        layers.ReLU(),
        layers.MaxPooling2D(3, 2, padding="same"),
    ]
    model = keras.Sequential([keras.Input((9, 8, 2)), *net, layers.Flatten(), layers.Dense(2)])
    chain = Chain.of(model.layers, (9, 8, 2))
    random = np.random.default_rng(0)
    masks = [np.zeros(stage.shape, bool) for stage in chain.stages]
    for _ in range(200):
        for layer in model.layers:
            layer.set_weights([random.normal(size=w.shape) for w in layer.get_weights()])
        x = random.normal(size=(1, 9, 8, 2)).astype(np.float32)
        _, elements = analysis._elements(chain, x)
        numbers = [number for number, stage in enumerate(chain.stages) if not stage.is_identity]
        for number, element in zip(numbers, elements, strict=True):
            masks[number] |= element.matrix.toarray() != 0
    for number in numbers:
        stage = chain.stages[number]
        assert masks[number].sum() == stage.entries, stage.kind
        assert stage.guaranteed_zeros == pytest.approx(1 - masks[number].mean())


def test_guaranteed_zeros_of_vgg11() -> None:
    """As in the paper."""
    stages = Chain.of(analysis.vgg11().layers, (32, 32, 3)).stages
    kinds = [(stage.kind, f"{stage.guaranteed_zeros:.5f}") for stage in stages[:3]]
    assert kinds == [("convolution", "0.99157"), ("relu", "0.99998"), ("max-pooling", "0.99994")]


def test_vgg11_is_pruned() -> None:
    for layer in analysis.vgg11(prune=0.97).layers:
        if layer.weights:
            zeros = np.mean(np.asarray(layer.kernel) == 0)
            assert zeros == pytest.approx(0.97, abs=1e-3)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    analysis.main(["--levels", "1"])
    text = capsys.readouterr().out
    for figure in ("3072 x 65536", "0.99157", "0.99998", "0.99994", "scan, 1 levels", "chain"):
        assert figure in text
    with pytest.raises(SystemExit):
        analysis.main(["--prune", "1"])
    assert "--prune must be at least 0 and less than 1" in capsys.readouterr().err


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tabulate", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib tabulate"):
        analysis.levels_table(analysis.analyze(nets.build("dense")))
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ImportError, match=r"SciPy 1.10 or later.*pip install 'scipy>=1.10'"):
        nets.build("dense")


def test_a_limit_stops_the_scan() -> None:
    model = nets.build("convolutions")
    report = analysis.analyze(model, limit=300)
    assert report.levels < 3
    assert report.obstacle.startswith(f"level {report.levels + 1}: ")
    assert "operations" in report.obstacle
