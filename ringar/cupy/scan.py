"""`ringar.cupy.scan`: the parallel scan of a chain of matrices, for CuPy arrays.

`ringar/cupy/kernels/scan.py` describes the algorithm, `ringar/cupy/plan.py` its division into
launches. This module runs the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.cupy import plan as planning
from ringar.cupy.checks import check, check_devices
from ringar.cupy.device import attributes, kernels, load
from ringar.cupy.plan import MAX_SIZE, Plan, Shape
from ringar.cupy.products import ProductLauncher

if TYPE_CHECKING:
    import cupy


_MAX_BLOCKS = 2**31 - 1


def scan(
    matrices: cupy.ndarray,
    vector: cupy.ndarray,
    addends: cupy.ndarray | None = None,
    *,
    adjoint: bool = False,
    levels: int | None = None,
) -> cupy.ndarray:
    """Apply a chain of matrices to a vector on a GPU and return the vector after each of them.

    With `adjoint=False`, v_0 = `vector` and v_t = M_t v_{t-1} + a_t for t = 1 … n, where M_t =
    `matrices[t - 1]` and a_t = `addends[t - 1]`. With `adjoint=True`, it is back-propagation:
    v_n = `vector` and v_{t-1} = M_t^T v_t + a_t, where M_t is the Jacobian of step t.

    It is enqueued on the current stream of that GPU, without waiting. A value that is infinite or
    NaN at one step affects only the results that depend on that step.

    Args:
        matrices: [n, B, H, H], float32 or float64. Kernels of ringar multiply matrices up to H =
            64, cuBLAS larger ones.
        vector: [B, H], of the same dtype.
        addends: [n, B, H], of the same dtype, or None.
        adjoint: apply the transposes, from the last to the first.
        levels: the number of levels of the tree, before a serial pass. 0 is the serial chain,
            ceil(log2(n + 1)) or more the whole scan, which still passes up to 2^5 nodes at the top
            serially. None: the choice of a model of the GPU (`ringar/cupy/plan.py`).

    Returns:
        v_0 … v_n, a `cupy.ndarray` [n + 1, B, H].

    Raises:
        ImportError: CuPy is not installed.
        UnsupportedError: CuPy finds no GPU.
        TypeError: an argument is of the wrong type or dtype.
        ValueError: an argument has the wrong shape, is out of range or on another GPU.

    Source: Wang, Bai, Pekhimenko, "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm",
    MLSys 2020 (arXiv:1907.10134).
    """
    cupy = load()
    check(cupy.ndarray, matrices, vector, addends, adjoint, levels)
    check_devices(matrices, vector, addends)
    with matrices.device:
        steps, batch, size = matrices.shape[:3]
        shape = Shape(size, matrices.dtype.itemsize, addends is not None)
        number = matrices.device.id
        limits = attributes(number)
        launcher: Any = ProductLauncher(cupy)
        if size <= MAX_SIZE and shape.up_shared <= limits["MaxSharedMemoryPerBlockOptin"]:
            launcher = kernels(shape, number)
        arrays = [None if a is None else cupy.ascontiguousarray(a)
                  for a in (matrices, vector, addends)]  # fmt: skip
        rounds_plan = _plan(steps, batch, shape, levels, limits["MultiProcessorCount"])
        return execute(rounds_plan, shape, launcher, *arrays, adjoint=adjoint)


def execute(
    rounds_plan: Plan | None,
    shape: Shape,
    launcher: Any,
    matrices: cupy.ndarray,
    vector: cupy.ndarray,
    addends: cupy.ndarray | None,
    *,
    adjoint: bool,
) -> cupy.ndarray:
    """Run a plan and return v_0 … v_n.

    Args:
        rounds_plan: the plan; None if there are no steps or examples.
        shape: the shape of the matrices.
        launcher: an object with `empty(shape, dtype)` and `launch(kernel, grid, block, shared,
            arguments)`.
        matrices: [n, B, H, H], contiguous.
        vector: [B, H], contiguous.
        addends: [n, B, H], contiguous, or None.
        adjoint: as in `scan`.
    """
    steps, batch, size = matrices.shape[:3]
    out = launcher.empty((steps + 1, batch, size), matrices.dtype)
    if rounds_plan is None:
        out[...] = vector
        return out
    run = _Run(shape, launcher, batch, matrices.dtype, steps if adjoint else None)
    nodes, added, states = [matrices], [addends], [out]
    for number, r in enumerate(rounds_plan.rounds):
        total, total_addends, above = run.up(
            number, r, nodes[-1], added[-1], vector if number == 0 else states[-1][1]
        )
        nodes.append(total)
        added.append(total_addends)
        states.append(above)
    # The up-sweep computes state 1 of a round above the leaves; with two nodes it is the last.
    if not rounds_plan.rounds or rounds_plan.top > 2:
        top = planning.Round(rounds_plan.top, rounds_plan.top)
        run.chain(len(rounds_plan.rounds), top, nodes[-1], added[-1], vector, None, states[-1])
    for number, r in reversed(list(enumerate(rounds_plan.rounds))):
        run.chain(number, r, nodes[number], added[number], vector, states[number + 1],
                  states[number])  # fmt: skip
    return out


class _Run:
    """Launch the parts of a plan."""

    def __init__(
        self,
        shape: Shape,
        launcher: Any,
        batch: int,
        dtype: Any,
        reversed_steps: int | None,
    ) -> None:
        self._shape = shape
        self._launcher = launcher
        self._batch = batch
        self._dtype = dtype
        self._reversed_steps = reversed_steps

    def _order(self, number: int, last: int) -> tuple[np.int64, np.int64]:
        """Return the index of the first node or state of a round, and the step to the next."""
        backwards = number == 0 and self._reversed_steps is not None
        return (np.int64(last), np.int64(-1)) if backwards else (np.int64(0), np.int64(1))

    def _kernel(self, name: str, number: int) -> str:
        transposed = number == 0 and self._reversed_steps is not None
        return f"{name}_{'transposed' if transposed else 'plain'}"

    def up(
        self,
        number: int,
        r: planning.Round,
        nodes: cupy.ndarray,
        addends: cupy.ndarray | None,
        start: cupy.ndarray,
    ) -> tuple[cupy.ndarray, cupy.ndarray | None, cupy.ndarray]:
        """Return the totals of all spans but the last: nodes, addends or None, states above."""
        batch, size, shape, empty = self._batch, self._shape.size, self._shape, self._launcher.empty
        count = r.spans - 1
        totals = empty((count, batch, size, size), self._dtype)
        total_addends = None if addends is None else empty((count, batch, size), self._dtype)
        states = empty((r.spans, batch, size), self._dtype)
        arguments = (
            nodes, addends, *self._order(number, r.nodes - 1), start, totals, total_addends,
            states[1], np.int32(r.width), np.int32(count), np.int32(batch), np.int32(number > 0),
        )  # fmt: skip
        blocks = _blocks(count * batch, shape.up_threads // shape.up_team)
        self._launcher.launch(
            self._kernel("up", number), blocks, shape.up_threads, shape.up_shared, arguments
        )
        return totals, total_addends, states

    def chain(
        self,
        number: int,
        r: planning.Round,
        nodes: cupy.ndarray,
        addends: cupy.ndarray | None,
        vector: cupy.ndarray,
        starts: cupy.ndarray | None,
        states: cupy.ndarray,
    ) -> None:
        """Compute the states of a round, given the state before each span."""
        shape, batch = self._shape, self._batch
        start = vector if number == 0 else states[1]
        arguments = (
            nodes, addends, *self._order(number, r.nodes - 1), start, starts, states,
            *self._order(number, r.nodes), np.int32(r.width), np.int32(r.nodes),
            np.int32(r.spans), np.int32(batch), np.int32(number > 0), np.int32(number == 0),
        )  # fmt: skip
        blocks = _blocks(r.spans * batch, shape.chain_threads // shape.chain_team)
        self._launcher.launch(
            self._kernel("chain", number), blocks, shape.chain_threads, shape.chain_shared,
            arguments,
        )  # fmt: skip


def _plan(steps: int, batch: int, shape: Shape, levels: int | None, processors: int) -> Plan | None:
    if steps == 0 or batch == 0:
        return None
    if levels is None:
        return planning.choose(steps, batch, shape.size, shape.itemsize, processors)
    return planning.plan(steps, int(levels))


def _blocks(teams: int, per_block: int) -> int:
    blocks = -(-teams // per_block)
    if blocks > _MAX_BLOCKS:
        raise ValueError(
            f"`matrices` must have a batch for which a launch needs at most {_MAX_BLOCKS} blocks. "
            f"Received: {blocks} blocks"
        )
    return blocks
