"""The scan's kernels `up` and `chain` as batched matrix products.

They are for matrices that are too large for a block's threads or its shared memory. CuPy computes
the products by cuBLAS, with one call per node for all spans and examples, so a launch of the plan
becomes as many calls as a span has nodes. Arguments are those of the kernels in
`ringar/cupy/kernels/scan.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cupy
    import numpy as np


class ProductLauncher:
    """Replace the launch of a kernel by matrix products.

    Args:
        arrays: the array library, `cupy` (or `numpy`, in tests).
    """

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> cupy.ndarray:
        """Return memory for totals and states."""
        return self._arrays.empty(shape, dtype)

    def launch(self, kernel: str, grid: int, block: int, shared: int, args: Sequence[Any]) -> None:
        """Run `kernel`; grid, block and shared memory are ignored."""
        name, orientation = kernel.split("_")
        run: Any = {"up": self._up, "chain": self._chain}[name]
        run(orientation == "transposed", *args)

    def _times(self, matrices: Any, vectors: Any, addends: Any) -> Any:
        result = self._arrays.matmul(matrices, vectors[..., None])[..., 0]
        return result if addends is None else result + addends

    def _up(
        self, transposed: bool, nodes: Any, addends: Any, node_first: int, node_step: int,
        start: Any, totals: Any, total_addends: Any, state: Any, width: int, spans: int,
        batch: int, skip: int,
    ) -> None:  # fmt: skip
        nodes, addends = _in_order(nodes, addends, transposed, node_step)
        vectors = start
        for i in range(skip, width):
            vectors = self._times(nodes[i], vectors, None if addends is None else addends[i])
        state[...] = vectors
        if spans == 1:
            return
        end = spans * width
        product = nodes[width:end:width]
        vectors = None if addends is None else addends[width:end:width]
        for i in range(width + 1, 2 * width):
            product = self._arrays.matmul(nodes[i:end:width], product)
            if addends is not None:
                vectors = self._times(nodes[i:end:width], vectors, addends[i:end:width])
        totals[1:spans] = product
        if addends is not None:
            total_addends[1:spans] = vectors

    def _chain(
        self, transposed: bool, nodes: Any, addends: Any, node_first: int, node_step: int,
        start: Any, starts: Any, states: Any, state_first: int, state_step: int, width: int,
        nodes_left: int, spans: int, batch: int, skip: int, last: int,
    ) -> None:  # fmt: skip
        nodes, addends = _in_order(nodes, addends, transposed, node_step)
        states = states[::state_step]
        states[skip] = start
        if spans > 1:
            states[width:nodes_left:width] = starts[1:spans]
        for i in range(width - 1):
            # Span 0 begins one node later if the spine already includes its first node.
            first = i + width if i < skip else i
            now = slice(first, nodes_left - 1, width)
            then = slice(first + 1, nodes_left, width)
            if first < nodes_left - 1:
                added = None if addends is None else addends[now]
                states[then] = self._times(nodes[now], states[now], added)
        if last:
            end = nodes_left - 1
            added = None if addends is None else addends[end]
            states[nodes_left] = self._times(nodes[end], states[end], added)


def _in_order(nodes: Any, addends: Any, transposed: bool, step: int) -> tuple[Any, Any]:
    """Return views of nodes and addends in the order in which they are applied."""
    nodes = nodes.swapaxes(-1, -2)[::step] if transposed else nodes[::step]
    return nodes, None if addends is None else addends[::step]
