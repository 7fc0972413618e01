"""The costs of a scan over the layers of a net, level by level.

    python -m benchmarks.scan.analysis --prune 0.97 --levels 2

prints the guaranteed zeros of the Jacobians of VGG-11, and the operations of the scan, as Wang, Bai
and Pekhimenko do in "BPPSA: Scaling back-propagation by parallel scan algorithm" (MLSys 2020,
arXiv:1907.10134) for a VGG-11 of which 97 % of the weights of all convolutions and linear layers
are pruned, with images of 32 x 32.

Operations are counted exactly, from where the entries of the matrices lie (`counting.py`): no
numbers are multiplied. Products of many layers have few zeros left, so that their patterns take
memory and time; a product of more than `limit` operations is not made, and the scan can go up no
further. So did the paper: two levels up, the rest one after the other, two levels down.

Weights are random, and pruned by magnitude, without training: the zeros lie evenly. Examples are
random, too. The number of operations hardly depends on that; half of each ReLU's derivatives are 0.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ringar.parallel.scan import tree
from ringar.parallel.scan.counting import Counter, Round, TooManyError, critical_path
from ringar.parallel.scan.elements import Element
from ringar.parallel.scan.stages import Chain, Stage

layers = keras.layers

#: Operations that a product of matrices may have for its pattern to be made: a minute or so.
LIMIT = 2e10

#: Filters of VGG-11's convolutions; "pool" halves height and width.
VGG11 = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What `analyze` returns.

    Attributes:
        stages: of the net, without those that only change shapes.
        sparsity: of each one's transposed Jacobian as it is, for these examples and weights.
        levels: of the scan.
        obstacle: why the scan goes up no further, or "".
        rounds: of the scan.
        chain: of the plain chain.
        plain: operations of the plain chain if no weight and no derivative were zero.
    """

    stages: list[Stage]
    sparsity: list[float]
    levels: int
    obstacle: str
    rounds: list[Round]
    chain: list[Round]
    plain: int


def analyze(
    model: Any, x: np.ndarray | None = None, levels: int | None = None, limit: float = LIMIT
) -> Analysis:
    """Count the operations of a scan over the layers of a model.

    Args:
        model: a built `keras.Sequential`, of layers that `ringar.parallel.scan.Sequential` takes.
        x: examples, (batch, ...); by default a random one.
        levels: how many the scan goes up and down; all by default.
        limit: how many operations a product of matrices may have. The scan goes up only as many
            levels as need no larger one.

    Returns:
        Counts for the whole batch. The first stage's matrix is in no product, since nothing needs
        the gradient of the inputs.

    Raises:
        ValueError: a layer is not supported.
    """
    if x is None:
        x = np.random.default_rng(0).normal(size=(1, *model.input_shape[1:])).astype(np.float32)
    chain = Chain.of(model.layers, model.input_shape[1:])
    stages, elements = _elements(chain, x)
    counter = Counter([*reversed(elements[1:])], batch=len(x), limit=limit)
    most = tree.most_levels(counter.length) - 1
    depth, obstacle = most if levels is None else min(levels, most), ""
    while True:
        try:
            rounds = counter.count(depth)
            break
        except TooManyError as reason:
            depth, obstacle = depth - 1, f"level {depth}: {reason}"
    return Analysis(
        stages,
        [_sparsity(*pair, len(x)) for pair in zip(stages, elements, strict=True)],
        depth, obstacle, rounds, counter.count(0),
        2 * len(x) * sum(stage.entries for stage in stages[1:]),
    )  # fmt: skip


def vgg11(classes: int = 10, prune: float = 0.0, seed: int = 0) -> keras.Sequential:
    """VGG-11 for images of 32 x 32 x 3, with one linear layer, without batch normalization.

    Args:
        classes: of the linear layer.
        prune: the share of the weights of each kernel that are set to zero, the smallest ones.
        seed: of the weights.
    """
    keras.utils.set_random_seed(seed)
    net: list[Any] = [keras.Input((32, 32, 3))]
    for filters in VGG11:
        if filters == "pool":
            net.append(layers.MaxPooling2D())
        else:
            net += [layers.Conv2D(filters, 3, padding="same"), layers.ReLU()]
    model = keras.Sequential([*net, layers.Flatten(), layers.Dense(classes)], name="vgg11")
    for layer in model.layers:
        if layer.weights:
            kernel = keras.ops.convert_to_numpy(layer.kernel).copy()
            order = np.argsort(np.abs(kernel), axis=None)
            kernel.reshape(-1)[order[: round(prune * kernel.size)]] = 0
            layer.kernel.assign(kernel)
    return model


def zeros_table(analysis: Analysis) -> str:
    """The guaranteed zeros of each stage, and all zeros, as text."""
    rows = [
        (stage.layer.name, stage.kind, "{} x {}".format(*stage.shape),
         f"{stage.guaranteed_zeros:.5f}", f"{sparsity:.5f}")
        for stage, sparsity in zip(analysis.stages, analysis.sparsity, strict=True)
    ]  # fmt: skip
    headers = ["layer", "stage", "transposed Jacobian", "guaranteed zeros", "zeros"]
    return _table(rows, headers)


def levels_table(analysis: Analysis) -> str:
    """The operations of each level of the scan, against the chain, as text."""
    rows = [_row(*part) for part in _parts(analysis.rounds)]
    rows.append(_row(f"scan, {analysis.levels} levels", analysis.rounds))
    rows.append(_row("chain", analysis.chain))
    million = f"{analysis.plain / 1e6:,.2f}"
    rows.append(("chain, weights not pruned", "", "", million, million, "", ""))
    headers = [
        "", "matrix x\nmatrix", "matrix x\nvector", "MFLOP", "MFLOP on the\ncritical path",
        "MFLOP of the\nlongest product", "least zeros\nin a product",
    ]  # fmt: skip
    return _table(rows, headers)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scan.analysis",
        description="The costs of a scan over the layers of a net, level by level.",
    )
    parser.add_argument("--model", choices=["vgg11"], default="vgg11")
    parser.add_argument("--prune", type=float, default=0.97, help="share of the weights")
    parser.add_argument("--levels", type=int, default=2, help="up and down")
    parser.add_argument("--examples", type=int, default=1, help="in the batch")
    parser.add_argument("--limit", type=float, default=LIMIT, help="operations of one product")
    options = parser.parse_args(arguments)
    if not 0 <= options.prune < 1:
        parser.error(f"--prune must be at least 0 and less than 1; received {options.prune}")
    random = np.random.default_rng(0)
    x = random.normal(size=(options.examples, 32, 32, 3)).astype(np.float32)
    result = analyze(vgg11(prune=options.prune), x, options.levels, options.limit)
    print(f"VGG-11 on 32 x 32 x 3, {options.prune:.0%} of the weights pruned, batch of {len(x)}\n")
    print(zeros_table(result), levels_table(result), sep="\n\n")
    if result.obstacle:
        print(f"\nNot counted: {result.obstacle}; the limit is {options.limit:.3g}")


def _elements(chain: Chain, x: np.ndarray) -> tuple[list[Stage], list[Element]]:
    """Those that are no mere change of shape, at these examples."""
    stages, elements = [], []
    inputs: Any = keras.ops.convert_to_tensor(x)
    for stage in chain.stages:
        inputs, record = stage.run(inputs, False)
        if not stage.is_identity:
            stages.append(stage)
            elements.append(stage.element(np.asarray(record)))
    return stages, elements


def _sparsity(stage: Stage, element: Element, batch: int) -> float:
    examples = batch if element.per_example else 1
    return float(1 - element.matrix.nnz / (examples * stage.shape[0] * stage.shape[1]))


def _parts(rounds: Sequence[Round]) -> list[tuple[str, list[Round]]]:
    """The rounds by phase and level; those without products left out."""
    parts: dict[str, list[Round]] = {}
    for entry in rounds:
        name = entry.phase.value
        if entry.phase is not tree.Phase.SERIAL:
            name += f", level {entry.level}"
        if entry.products:
            parts.setdefault(name, []).append(entry)
    return list(parts.items())


def _row(name: str, rounds: Sequence[Round]) -> tuple[Any, ...]:
    products = [product for entry in rounds for product in entry.products]
    vectors = sum(product.is_vector for product in products)
    zeros = [product.sparsity for product in products if not product.is_vector]
    return (
        name, len(products) - vectors, vectors,
        f"{sum(entry.flops for entry in rounds) / 1e6:,.2f}",
        f"{critical_path(rounds) / 1e6:,.2f}",
        f"{max((product.flops for product in products), default=0) / 1e6:,.2f}",
        f"{min(zeros):.5f}" if zeros else "",
    )  # fmt: skip


def _table(rows: Sequence[Any], headers: Sequence[str]) -> str:
    try:
        from tabulate import tabulate
    except ImportError as error:
        raise ImportError(
            f"The tables need tabulate, which is missing: {error}. "
            "Install it with: pip install matplotlib tabulate"
        ) from error
    right = ["left", *["right"] * (len(headers) - 1)]
    return tabulate(rows, headers, tablefmt="github" if "\n" not in "".join(headers) else "simple",
                    disable_numparse=True, colalign=right)  # fmt: skip


if __name__ == "__main__":
    main()
