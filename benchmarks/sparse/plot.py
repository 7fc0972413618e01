"""Draws a sparse layer before and after its partition, and the words of placements.

    python -m benchmarks.sparse.plot build/sparse.json docs/pictures/sparse.png

Left: a layer of planted communities as it is given, a dot per weight. Middle: the same, neurons
sorted by the rank that the partitioner gave them; weights that need a ghost are red. Right: the
words of each net and placement that `benchmarks.sparse` has counted, of those of random placement.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness.plot import main, pyplot, save
from benchmarks.sparse import nets

RANKS, UNITS = 4, (192, 192, 192)
COLORS = {"hypergraph": "#2f8fd8", "block": "#c9d6e3", "random": "#8a97a5"}
OWN, GHOST = "#2f8fd8", "#d1495b"


def _layers(axes: list[Any]) -> None:
    """Draws a layer as it is given, and sorted by rank."""
    from ringar.parallel import sparse

    layers = sparse.communities(UNITS, 8, 6, 0.02, seed=3)
    partition = sparse.partition(layers, RANKS)
    layer, (before, owners) = layers[1].tocoo(), partition.owners
    axes[0].scatter(layer.col, layer.row, s=1.6, color="0.35", linewidths=0)
    axes[0].set_title("A layer of planted communities,\nas it is given", fontsize=10)
    column, row = (
        np.argsort(np.argsort(placement, kind="stable")) for placement in (before, owners)
    )
    ghost = before[layer.col] != owners[layer.row]
    for mask, color in ((~ghost, OWN), (ghost, GHOST)):
        axes[1].scatter(column[layer.col[mask]], row[layer.row[mask]], s=1.6, color=color,
                        linewidths=0)  # fmt: skip
    for placement, draw in ((before, axes[1].axvline), (owners, axes[1].axhline)):
        for end in np.cumsum(np.bincount(placement))[:-1]:
            draw(end - 0.5, color="0.8", linewidth=0.8, zorder=0)
    words = partition.words(layers)[1]
    axes[1].set_title(
        f"Sorted by rank: {words} of {UNITS[1]} states cross\n(red weights read them)", fontsize=10
    )
    for panel in axes[:2]:
        panel.set_xlim(-1, UNITS[1])
        panel.set_ylim(UNITS[2], -1)
        panel.set_aspect("equal")
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_xlabel("neurons of the layer before")
    axes[0].set_ylabel("neurons of the layer")


def _words(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draws the words of each net, of those of random placement."""
    labels = [f"{row['net'].replace(', ', chr(10))}, {row['ranks']} ranks" for row in rows]
    height = 0.27
    for index, method in enumerate(nets.METHODS):
        places = [number + (index - 1) * height for number in range(len(rows))]
        shares = [100 * row[method] / row["random"] for row in rows]
        axes.barh(places, shares, height * 0.92, color=COLORS[method], label=method)
        if method == "hypergraph":
            for place, share in zip(places, shares, strict=True):
                axes.text(share + 1.5, place, f"{share:.0f}%", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 118)
    axes.set_xlabel("words per example, % of random placement")
    axes.set_title("Where a partitioner helps", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center",
                bbox_to_anchor=(0.45, -0.13))  # fmt: skip


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture of what `benchmarks.sparse` has measured.

    Raises:
        ValueError: the words were not counted.
    """
    if not data["words"]:
        raise ValueError("expected the words of placements; received none: run --only words")
    figure, axes = pyplot().subplots(
        1, 3, figsize=(12, 4.2), width_ratios=[1, 1, 0.85], layout="constrained"
    )
    _layers(list(axes))
    _words(axes[2], data["words"])
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.sparse.plot", __doc__, draw=draw)
