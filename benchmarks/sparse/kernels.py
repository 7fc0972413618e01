"""The native kernels of a sparse layer beside SciPy's products, on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ringar.research.sparse.kernels import Product
    from ringar.research.sparse.plan import LayerPlan

UNITS, CONNECTIONS = 8192, 32
BATCHES = (1, 8, 32, 64, 128)
REPEATS = 5


def rows() -> list[dict[str, Any]]:
    """Returns the seconds of products and gradients of one layer for each size of the batch."""
    from ringar.parallel import sparse
    from ringar.research.sparse.kernels import Product
    from ringar.research.sparse.plan import plans

    layers = sparse.communities([UNITS] * 3, 16, CONNECTIONS, 0.01, seed=1)
    plan, pattern = list(plans(layers, sparse.partition(layers, 1, "block"), 0))[1]
    table = []
    for batch in BATCHES:
        row: dict[str, Any] = {"batch": batch, "nonzeros": len(pattern.columns)}
        for kernel in ("native", "scipy"):
            product = Product(plan, pattern, True, kernel, 1)
            row[kernel], row[f"{kernel} gradient"] = _seconds(product, plan, batch)
        table.append(row)
    return table


def _seconds(product: Product, plan: LayerPlan, batch: int) -> tuple[float, float]:
    import tensorflow as tf

    rng, rows = np.random.default_rng(0), len(plan.neurons)
    values, bias, states, upstream = (
        tf.constant(rng.standard_normal(shape, np.float32))
        for shape in (len(product.columns), rows, (plan.own_inputs, batch), (rows, batch))
    )
    ghosts = tf.zeros([0, batch])
    return (
        _fastest(lambda: product(values, bias, states, ghosts)),
        _fastest(lambda: product._gradients(values, upstream, states, ghosts)),
    )


def _fastest(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
