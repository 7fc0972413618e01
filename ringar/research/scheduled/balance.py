"""Share out work by its cost: the longest processing time first."""

from __future__ import annotations

import heapq

import numpy as np


def balance(costs: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Share out items to ranks so that all ranks have about the same cost.

    The next item in the order of falling costs goes to the rank that has least so far (longest
    processing time first, Graham 1969), which is within a third of the best. Kim et al. (EuroSys
    2016) balance blocks of variables in this way. The result is the same on all ranks.

    Args:
        costs: the cost of each item, (items,), not negative.
        ranks: the number of ranks.

    Returns:
        The numbers of each rank's items, ascending. No rank is without one if there are as many
        items as ranks.

    Raises:
        ValueError: `costs` has another shape, or a cost is negative or not finite.
    """
    costs = np.asarray(costs)
    if costs.ndim != 1:
        raise ValueError(f"`costs` must have one dimension. Received: shape {costs.shape}")
    if costs.size and not (np.isfinite(costs).all() and (costs >= 0).all()):
        raise ValueError("`costs` must be finite, and not negative")
    if ranks < 1:
        raise ValueError(f"`ranks` must be positive. Received: {ranks}")
    blocks: list[list[int]] = [[] for _ in range(ranks)]
    # Least cost first, then fewest items: items that cost nothing are shared out, too.
    least = [(0.0, 0, rank) for rank in range(ranks)]
    for item in np.argsort(-costs, kind="stable"):
        cost, items, rank = heapq.heappop(least)
        blocks[rank].append(int(item))
        heapq.heappush(least, (cost + float(costs[item]), items + 1, rank))
    return [np.sort(np.array(block, np.int64)) for block in blocks]
